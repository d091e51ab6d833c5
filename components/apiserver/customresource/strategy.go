package customresource

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"hyperkube/internal/api"
)

func (v *kindVersion) hasStatus() bool { return v.Subresources != nil && v.Subresources.Status != nil }

func (v *kindVersion) prepareCreate(_ context.Context, o api.Object) {
	obj := unstructuredOf(o)
	if v.hasStatus() {
		delete(obj.Object, "status")
	}
	obj.SetGeneration(1)
}

// prepareUpdate resets the status if there is a status subresource. Changes of anything but
// metadata increment the generation.
func (v *kindVersion) prepareUpdate(_ context.Context, o, before api.Object) {
	obj, old := unstructuredOf(o), unstructuredOf(before)
	if v.hasStatus() {
		if status, ok := old.Object["status"]; ok {
			obj.Object["status"] = runtime.DeepCopyJSONValue(status)
		} else {
			delete(obj.Object, "status")
		}
	}
	if !equality.Semantic.DeepEqual(withoutMetadata(obj.Object), withoutMetadata(old.Object)) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
}

func withoutMetadata(content map[string]any) map[string]any {
	out := make(map[string]any, len(content))
	for name, value := range content {
		if name != "metadata" {
			out[name] = value
		}
	}
	return out
}

// prepareStatus resets everything except the status and its managed fields.
func prepareStatus(_ context.Context, o, before api.Object) {
	obj := unstructuredOf(o)
	status, ok := obj.Object["status"]
	managed := obj.GetManagedFields()
	obj.Object = unstructuredOf(before).DeepCopy().Object
	obj.SetManagedFields(managed)
	if ok {
		obj.Object["status"] = status
	} else {
		delete(obj.Object, "status")
	}
}

// ownFinalizers are Kubernetes' own finalizers without a domain.
var ownFinalizers = []string{metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents, string(corev1.FinalizerKubernetes)}

// warnings returns warnings about new finalizers whose names are not domain-qualified.
func (v *kindVersion) warnings(_ context.Context, obj, old api.Object) []string {
	added := slices.Clone(obj.GetFinalizers())
	if old != nil {
		added = slices.DeleteFunc(added, func(f string) bool { return slices.Contains(old.GetFinalizers(), f) })
	}
	slices.Sort(added)
	var out []string
	for _, f := range slices.Compact(added) {
		warn := func(text string) { out = append(out, fmt.Sprintf("metadata.finalizers: %q: %s", f, text)) }
		for _, msg := range validation.IsQualifiedName(f) {
			warn(msg)
		}
		switch {
		case strings.Contains(f, "/") || slices.Contains(ownFinalizers, f):
		case strings.Contains(f, "."):
			warn("prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers")
		default:
			warn("prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers")
		}
	}
	return out
}
