package fieldmanager

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	gvkschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// trusting is a TypeConverter that does not validate Go objects against their
// schema again and again: their Go type is what the schema was made from.
// Unstructured objects are clients' and are validated.
type trusting struct {
	managedfields.TypeConverter

	mu    sync.RWMutex
	known map[gvkschema.GroupVersionKind]schemaOf
}

type schemaOf struct {
	schema *schema.Schema
	ref    schema.TypeRef
}

func newTrusting(t managedfields.TypeConverter) *trusting {
	return &trusting{TypeConverter: t, known: map[gvkschema.GroupVersionKind]schemaOf{}}
}

// ObjectToTyped pairs obj with the schema of its kind.
func (t *trusting) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if _, ok := obj.(runtime.Unstructured); ok {
		return t.TypeConverter.ObjectToTyped(obj, opts...)
	}
	gvk := obj.GetObjectKind().GroupVersionKind()
	t.mu.RLock()
	known, ok := t.known[gvk]
	t.mu.RUnlock()
	if ok {
		v, err := value.NewValueReflect(obj)
		if err != nil {
			return nil, err
		}
		return typed.AsTypedUnvalidated(v, known.schema, known.ref), nil
	}
	out, err := t.TypeConverter.ObjectToTyped(obj, opts...)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[gvk] = schemaOf{out.Schema(), out.TypeRef()}
	return out, nil
}
