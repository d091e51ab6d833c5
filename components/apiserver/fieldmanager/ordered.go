package fieldmanager

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// largeMap is the number of keys from which on a map is visited in the order of its keys.
const largeMap = 256

// ordered is a TypeConverter for custom resources. In the typed values that it returns, large maps are visited in the
// order of their keys. The managedfields library collects the fields of an object in sorted slices, into which it
// inserts one field at a time: in the random order of Go's maps that takes quadratic time, which is seconds for an
// object of 2 MB.
type ordered struct{ managedfields.TypeConverter }

// ObjectToTyped implements managedfields.TypeConverter. It returns obj with the schema of its kind,
// as a value whose large maps are visited in order.
func (o ordered) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	t, err := o.TypeConverter.ObjectToTyped(obj, opts...)
	if err != nil {
		return nil, err
	}
	return typed.AsTypedUnvalidated(orderedValue{t.AsValue()}, t.Schema(), t.TypeRef()), nil
}

// orderedValue is a value whose large maps, and those of all values in it, are visited in order.
type orderedValue struct{ value.Value }

// orderedOrNil returns v as an orderedValue, or nil if v is nil.
func orderedOrNil(v value.Value) value.Value {
	if v == nil {
		return nil
	}
	if _, ok := v.(orderedValue); ok {
		return v
	}
	return orderedValue{v}
}

// AsMap implements value.Value. The result is visited in order if it is large.
func (v orderedValue) AsMap() value.Map { return orderedMap{v.Value.AsMap()} }

// AsMapUsing implements value.Value. If the map is large, it is visited in the order of its keys.
func (v orderedValue) AsMapUsing(a value.Allocator) value.Map {
	return orderedMap{v.Value.AsMapUsing(a)}
}

// AsList implements value.Value. Large maps in the items are visited in order.
func (v orderedValue) AsList() value.List { return orderedList{v.Value.AsList()} }

// AsListUsing implements value.Value. Large maps in the items are visited in order.
func (v orderedValue) AsListUsing(a value.Allocator) value.List {
	return orderedList{v.Value.AsListUsing(a)}
}

// orderedMap is a map that is visited in the order of its keys if it is large. Its values are
// orderedValues.
type orderedMap struct{ value.Map }

// Get implements value.Map. Large maps in the result are visited in order.
func (m orderedMap) Get(key string) (value.Value, bool) {
	return m.GetUsing(value.HeapAllocator, key)
}

// GetUsing implements value.Map. Large maps in the result are visited in order.
func (m orderedMap) GetUsing(a value.Allocator, key string) (value.Value, bool) {
	v, ok := m.Map.GetUsing(a, key)
	return orderedOrNil(v), ok
}

// Iterate implements value.Map. It calls visit in the order of the keys if the map is large.
func (m orderedMap) Iterate(visit func(string, value.Value) bool) bool {
	return m.IterateUsing(value.HeapAllocator, visit)
}

// IterateUsing implements value.Map. It calls visit in the order of the keys if the map is large,
// until visit returns false.
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

// Zip implements value.Map. It visits the keys of both maps, in their order if one of the maps is
// large.
func (m orderedMap) Zip(other value.Map, order value.MapTraverseOrder, visit func(string, value.Value, value.Value) bool) bool {
	return m.ZipUsing(value.HeapAllocator, other, order, visit)
}

// ZipUsing implements value.Map. It visits the keys of both maps, in their order if one of the maps
// is large.
func (m orderedMap) ZipUsing(a value.Allocator, other value.Map, order value.MapTraverseOrder, visit func(string, value.Value, value.Value) bool) bool {
	if m.Length() >= largeMap || other != nil && other.Length() >= largeMap {
		order = value.LexicalKeyOrder
	}
	return m.Map.ZipUsing(a, other, order, func(key string, v, otherValue value.Value) bool {
		return visit(key, orderedOrNil(v), orderedOrNil(otherValue))
	})
}

// orderedList is a list whose items are orderedValues.
type orderedList struct{ value.List }

// At implements value.List. Large maps in the item are visited in order.
func (l orderedList) At(i int) value.Value { return orderedOrNil(l.List.At(i)) }

// AtUsing implements value.List. Large maps in the item are visited in order.
func (l orderedList) AtUsing(a value.Allocator, i int) value.Value {
	return orderedOrNil(l.List.AtUsing(a, i))
}

// Range implements value.List. Large maps in the items are visited in order.
func (l orderedList) Range() value.ListRange { return orderedRange{l.List.Range()} }

// RangeUsing implements value.List. Large maps in the items are visited in order.
func (l orderedList) RangeUsing(a value.Allocator) value.ListRange {
	return orderedRange{l.List.RangeUsing(a)}
}

// orderedRange iterates over the items of an orderedList.
type orderedRange struct{ value.ListRange }

// Item implements value.ListRange. It returns the index and the current item, whose large maps are
// visited in order.
func (r orderedRange) Item() (int, value.Value) {
	i, v := r.ListRange.Item()
	return i, orderedOrNil(v)
}
