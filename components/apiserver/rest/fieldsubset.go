package rest

import (
	"reflect"
	"strings"

	"hyperkube/internal/api"
)

// fieldSubset contains the top-level fields of an object that a patch changes, by JSON name. Only these
// fields are converted to JSON. This saves most of the work when the status of a pod is patched.
// Nil means all fields.
type fieldSubset map[string]int

// touchedFields returns the fields that a strategic merge patch of current changes. It returns nil
// for all if the patch contains top-level directives or unknown fields. obj is an empty object of
// the kind.
func touchedFields(current, obj api.Object, patch map[string]any) fieldSubset {
	t := reflect.TypeOf(current)
	if t != reflect.TypeOf(obj) || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil
	}
	t = t.Elem()
	out := fieldSubset{}
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

// project returns an object with only these fields of obj. It shares them.
func (t fieldSubset) project(obj api.Object) api.Object {
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

// keep removes other fields that the JSON of such an object still contains.
func (t fieldSubset) keep(content map[string]any) {
	if t == nil {
		return
	}
	for name := range content {
		if _, ok := t[name]; !ok {
			delete(content, name)
		}
	}
}

// with returns a copy of current with these fields of obj.
func (t fieldSubset) with(current, obj api.Object) api.Object {
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
