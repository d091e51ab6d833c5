package customresource

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/fields"

	"hyperkube/internal/api"
)

// fields returns a function that extracts from an object the values that field selectors compare, and the names of
// the supported fields: the name, the namespace if the objects have one, and the selectable fields of the version.
// The value of a missing field is "".
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#crd-selectable-fields
func (v *kindVersion) fields(namespaced bool) (func(api.Object) fields.Set, []string) {
	names := []string{"metadata.name"}
	if namespaced {
		names = append(names, "metadata.namespace")
	}
	var paths []*path
	for _, f := range v.SelectableFields {
		p, err := parsePath(f.JSONPath)
		if err != nil {
			continue // validation rejects such paths
		}
		paths = append(paths, p)
		names = append(names, strings.TrimPrefix(f.JSONPath, "."))
	}
	return func(o api.Object) fields.Set {
		obj := unstructuredOf(o)
		set := fields.Set{"metadata.name": obj.GetName()}
		if namespaced {
			set["metadata.namespace"] = obj.GetNamespace()
		}
		for _, p := range paths {
			value, ok := p.find(obj.Object)
			text := ""
			if ok && value != nil {
				text = fmt.Sprint(value)
			}
			set[strings.TrimPrefix(p.text, ".")] = text
		}
		return set
	}, names
}
