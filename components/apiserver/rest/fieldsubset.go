package rest

import (
	"reflect"
	"strings"

	"hyperkube/internal/api"
)

// fieldSubset contains the top-level fields of an object that a strategic merge patch changes: the
// index of the struct field by JSON name. Only these fields are converted to JSON and back, which
// saves most of the work when the status of a pod is patched. A nil fieldSubset stands for all
// fields.
type fieldSubset map[string]int

// touchedFields returns the fields of current that a strategic merge patch changes. It returns nil, for all fields,
// if the patch contains top-level directives or unknown fields, or if current is not a struct of the type of obj, an
// empty object of the kind that the patch is applied to.
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

// project returns a new object of the type of obj that has only the fields in t. Their values are shared with obj.
// For a nil t it returns obj itself.
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

// keep deletes all fields that are not in t from content, the JSON of a projected object, which still contains
// required fields with zero values. For a nil t it does nothing.
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

// with returns a copy of current in which the fields of t are replaced by those of obj, the patched object. For a nil
// t it returns obj.
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
