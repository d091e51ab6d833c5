package store

import (
	"reflect"
	"unsafe"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"
)

// weakObject finds a decoded object for as long as anybody has it, without
// keeping it. So all informers of a process share their objects with each other
// and with those who read now and then, whatever the bound of the store is.
type weakObject struct {
	kind    reflect.Type
	pointer weak.Pointer[byte]
}

// weaken returns nil for what is no pointer, which no published type is.
func weaken(obj runtime.Object) *weakObject {
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer || v.Type().Elem().Size() == 0 {
		return nil
	}
	// The first byte stands for the whole: weak pointers are to allocations.
	return &weakObject{kind: v.Type().Elem(), pointer: weak.Make((*byte)(v.UnsafePointer()))}
}

// get returns the object, or nil when it is gone.
func (w *weakObject) get() runtime.Object {
	p := w.pointer.Value()
	if p == nil {
		return nil
	}
	obj, _ := reflect.NewAt(w.kind, unsafe.Pointer(p)).Interface().(runtime.Object)
	return obj
}
