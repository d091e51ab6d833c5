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

// unvalidatedConverter is a TypeConverter that does not validate Go objects against their schema,
// because the schema was generated from their Go types. It validates unstructured objects, which
// come from clients. It remembers the schema of each kind after its first object. It is safe for
// concurrent use.
type unvalidatedConverter struct {
	managedfields.TypeConverter

	mu    sync.RWMutex
	known map[gvkschema.GroupVersionKind]schemaOf
}

// schemaOf is the schema of one kind: all types, and the reference to the kind's type.
type schemaOf struct {
	schema *schema.Schema
	ref    schema.TypeRef
}

// newUnvalidatedConverter returns an unvalidatedConverter with the schemas of t.
func newUnvalidatedConverter(t managedfields.TypeConverter) *unvalidatedConverter {
	return &unvalidatedConverter{TypeConverter: t, known: map[gvkschema.GroupVersionKind]schemaOf{}}
}

// ObjectToTyped implements managedfields.TypeConverter. It validates obj only if it is unstructured
// or the first object of its kind.
func (t *unvalidatedConverter) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
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
