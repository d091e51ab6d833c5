package rest

import (
	"reflect"
	"strings"

	"hyperkube/internal/api"
)

// touched are the fields at the top of an object that a patch is about, by
// their names in JSON. The others need not go through what patches are made of;
// of a Pod whose status is patched, that is the most. Nil stands for all.
type touched map[string]int

// touchedFields finds what a strategic merge patch of current changes. It is
// all when the patch has directives at its top, or something that objects of
// the kind have not. Obj is an empty object of the kind.
func touchedFields(current, obj api.Object, patch map[string]any) touched {
	t := reflect.TypeOf(current)
	if t != reflect.TypeOf(obj) || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil
	}
	t = t.Elem()
	out := touched{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if _, ok := patch[name]; ok && name != "" {
			out[name] = i
		}
	}
	if len(out) != len(patch) {
		return nil
	}
	return out
}

// of returns an object that has only those fields of obj. It shares them.
func (t touched) of(obj api.Object) api.Object {
	if t == nil {
		return obj
	}
	from := reflect.ValueOf(obj).Elem()
	to := reflect.New(from.Type())
	for _, i := range t {
		to.Elem().Field(i).Set(from.Field(i))
	}
	return to.Interface().(api.Object)
}

// keep drops what an object without the other fields still has of them.
func (t touched) keep(content map[string]any) {
	if t == nil {
		return
	}
	for name := range content {
		if _, ok := t[name]; !ok {
			delete(content, name)
		}
	}
}

// with returns a copy of current that has those fields of obj.
func (t touched) with(current, obj api.Object) api.Object {
	if t == nil {
		return obj
	}
	rest := reflect.New(reflect.TypeOf(current).Elem())
	rest.Elem().Set(reflect.ValueOf(current).Elem())
	for _, i := range t {
		rest.Elem().Field(i).SetZero()
	}
	out := rest.Interface().(api.Object).DeepCopyObject().(api.Object)
	from, to := reflect.ValueOf(obj).Elem(), reflect.ValueOf(out).Elem()
	for _, i := range t {
		to.Field(i).Set(from.Field(i))
	}
	return out
}
