package customresource

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/internal/api"
)

// splitPath splits a path that consists only of field names, such as ".spec.replicas", into these
// names.
func splitPath(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }

// scale returns the functions with which the scale subresource reads and sets the replicas of
// custom resources, at the paths that the definition contains. The version must have a scale
// subresource.
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#scale-subresource
func (v *kindVersion) scale() *api.Scale {
	s := v.Subresources.Scale
	spec, status := splitPath(s.SpecReplicasPath), splitPath(s.StatusReplicasPath)
	var selector []string
	if s.LabelSelectorPath != nil && *s.LabelSelectorPath != "" {
		selector = splitPath(*s.LabelSelectorPath)
	}
	others := map[string][]string{}
	for name, other := range v.of.versions {
		var path []string
		if other.Subresources != nil && other.Subresources.Scale != nil {
			path = splitPath(other.Subresources.Scale.SpecReplicasPath)
		}
		others[schema.GroupVersion{Group: v.gvk.Group, Version: name}.String()] = path
	}
	return &api.Scale{
		SpecReplicasPath: spec,
		OtherPaths:       others,
		Get: func(o api.Object) (int32, int32, string) {
			obj := unstructuredOf(o)
			// Validation has rejected values that are not numbers.
			want, _, _ := unstructured.NestedInt64(obj.Object, spec...)
			have, _, _ := unstructured.NestedInt64(obj.Object, status...)
			text := ""
			if selector != nil {
				text, _, _ = unstructured.NestedString(obj.Object, selector...)
			}
			return int32(want), int32(have), text
		},
		Set: func(o api.Object, replicas int32) {
			// It fails if part of the path is not an object, which validation has rejected.
			_ = unstructured.SetNestedField(unstructuredOf(o).Object, int64(replicas), spec...)
		},
		Custom:     true,
		Unreadable: func(o api.Object) error { return unreadable(unstructuredOf(o), spec, status, selector) },
		Check: func(o api.Object) error {
			if _, found, _ := unstructured.NestedInt64(unstructuredOf(o).Object, spec...); !found {
				return fmt.Errorf("the spec replicas field %q does not exist", s.SpecReplicasPath)
			}
			return nil
		},
	}
}

// unreadable returns an error if the value at one of the paths does not have the type of the
// corresponding field of Scale: a number for spec and status, a string for selector. A nil selector
// is not checked.
func unreadable(obj *unstructured.Unstructured, spec, status, selector []string) error {
	for _, path := range [][]string{spec, status} {
		if _, _, err := unstructured.NestedInt64(obj.Object, path...); err != nil {
			return err
		}
	}
	if selector == nil {
		return nil
	}
	_, _, err := unstructured.NestedString(obj.Object, selector...)
	return err
}
