package store

import (
	"reflect"
	"unsafe"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"
)

// weakObject refers to a decoded object without keeping it alive. With it, all informers of a
// process share their objects with each other and with other readers, independent of the memory
// limit of the store.
type weakObject struct {
	kind    reflect.Type
	pointer weak.Pointer[byte]
}

// weaken returns a weak reference to obj, or nil if obj is not a pointer to a type with a size. All
// API types are such pointers.
func weaken(obj runtime.Object) *weakObject {
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer || v.Type().Elem().Size() == 0 {
		return nil
	}
	// A weak pointer to the first byte represents the whole allocation.
	return &weakObject{kind: v.Type().Elem(), pointer: weak.Make((*byte)(v.UnsafePointer()))}
}

// get returns the object, or nil if it was garbage collected. w must not be nil.
func (w *weakObject) get() runtime.Object {
	p := w.pointer.Value()
	if p == nil {
		return nil
	}
	obj, _ := reflect.NewAt(w.kind, unsafe.Pointer(p)).Interface().(runtime.Object)
	return obj
}
