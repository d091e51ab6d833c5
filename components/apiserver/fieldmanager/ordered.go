package fieldmanager

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// largeMap is from how many keys on a map is visited in the order of its keys.
const largeMap = 256

// ordered is a TypeConverter whose objects visit the keys of large maps in order. The library collects the fields of an
// object in sorted slices, into which it inserts one field at a time: in the random order of Go's maps that takes
// quadratic time, which is seconds for an object of 2 MB.
type ordered struct{ managedfields.TypeConverter }

// ObjectToTyped pairs obj with the schema of its kind.
func (o ordered) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	t, err := o.TypeConverter.ObjectToTyped(obj, opts...)
	if err != nil {
		return nil, err
	}
	return typed.AsTypedUnvalidated(orderedValue{t.AsValue()}, t.Schema(), t.TypeRef()), nil
}

// orderedValue is a value whose large maps are visited in order.
type orderedValue struct{ value.Value }

func orderedOrNil(v value.Value) value.Value {
	if v == nil {
		return nil
	}
	if _, ok := v.(orderedValue); ok {
		return v
	}
	return orderedValue{v}
}

// AsMap implements value.Value.
func (v orderedValue) AsMap() value.Map { return orderedMap{v.Value.AsMap()} }

// AsMapUsing implements value.Value.
func (v orderedValue) AsMapUsing(a value.Allocator) value.Map {
	return orderedMap{v.Value.AsMapUsing(a)}
}

// AsList implements value.Value.
func (v orderedValue) AsList() value.List { return orderedList{v.Value.AsList()} }

// AsListUsing implements value.Value.
func (v orderedValue) AsListUsing(a value.Allocator) value.List {
	return orderedList{v.Value.AsListUsing(a)}
}

// orderedMap is a map that is visited in order when it is large.
type orderedMap struct{ value.Map }

// Get implements value.Map.
func (m orderedMap) Get(key string) (value.Value, bool) {
	return m.GetUsing(value.HeapAllocator, key)
}

// GetUsing implements value.Map.
func (m orderedMap) GetUsing(a value.Allocator, key string) (value.Value, bool) {
	v, ok := m.Map.GetUsing(a, key)
	return orderedOrNil(v), ok
}

// Iterate implements value.Map.
func (m orderedMap) Iterate(visit func(string, value.Value) bool) bool {
	return m.IterateUsing(value.HeapAllocator, visit)
}

// IterateUsing implements value.Map.
func (m orderedMap) IterateUsing(a value.Allocator, visit func(string, value.Value) bool) bool {
	if m.Length() < largeMap {
		return m.Map.IterateUsing(a, func(key string, v value.Value) bool { return visit(key, orderedOrNil(v)) })
	}
	keys := make([]string, 0, m.Length())
	m.Map.IterateUsing(a, func(key string, _ value.Value) bool {
		keys = append(keys, key)
		return true
	})
	slices.Sort(keys)
	for _, key := range keys {
		v, _ := m.Map.GetUsing(a, key)
		more := visit(key, orderedOrNil(v))
		a.Free(v)
		if !more {
			return false
		}
	}
	return true
}

// Zip implements value.Map.
func (m orderedMap) Zip(other value.Map, order value.MapTraverseOrder, visit func(string, value.Value, value.Value) bool) bool {
	return m.ZipUsing(value.HeapAllocator, other, order, visit)
}

// ZipUsing implements value.Map.
func (m orderedMap) ZipUsing(a value.Allocator, other value.Map, order value.MapTraverseOrder, visit func(string, value.Value, value.Value) bool) bool {
	if m.Length() >= largeMap || other != nil && other.Length() >= largeMap {
		order = value.LexicalKeyOrder
	}
	return m.Map.ZipUsing(a, other, order, func(key string, v, otherValue value.Value) bool {
		return visit(key, orderedOrNil(v), orderedOrNil(otherValue))
	})
}

// orderedList is a list of values whose large maps are visited in order.
type orderedList struct{ value.List }

// At implements value.List.
func (l orderedList) At(i int) value.Value { return orderedOrNil(l.List.At(i)) }

// AtUsing implements value.List.
func (l orderedList) AtUsing(a value.Allocator, i int) value.Value {
	return orderedOrNil(l.List.AtUsing(a, i))
}

// Range implements value.List.
func (l orderedList) Range() value.ListRange { return orderedRange{l.List.Range()} }

// RangeUsing implements value.List.
func (l orderedList) RangeUsing(a value.Allocator) value.ListRange {
	return orderedRange{l.List.RangeUsing(a)}
}

// orderedRange iterates over an orderedList.
type orderedRange struct{ value.ListRange }

// Item implements value.ListRange.
func (r orderedRange) Item() (int, value.Value) {
	i, v := r.ListRange.Item()
	return i, orderedOrNil(v)
}
