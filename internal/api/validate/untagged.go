package validate

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Untagged formats values of published API types in messages with their Go field names: upstream
// validates internal types, which have no JSON names, so its messages contain Go names. Types
// outside of k8s.io/api, such as metadata and quantities, look the same in both. The value must not
// change while the result is in use.
type Untagged struct{ Value any }

// Tagged excludes a value from UntaggedValues, so that it is formatted with JSON names.
type Tagged struct{ Value any }

// MarshalJSON returns the JSON of the value with its JSON names.
func (t Tagged) MarshalJSON() ([]byte, error) { return json.Marshal(t.Value) }

// MarshalJSON returns the JSON of the value with Go field names.
func (u Untagged) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	if err := writeUntagged(&b, reflect.ValueOf(u.Value)); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// UntaggedValues wraps the values in errors that contain structs of k8s.io/api in Untagged, so that
// messages show Go field names as upstream's do. Declarative errors are not changed, because
// upstream creates them from the published types. It modifies errs.
func UntaggedValues(errs field.ErrorList) field.ErrorList {
	for i, e := range errs {
		if e.CoveredByDeclarative || !hasAPIStruct(reflect.TypeOf(e.BadValue)) {
			continue
		}
		shown := *e
		shown.BadValue = Untagged{e.BadValue}
		errs[i] = &shown
	}
	return errs
}

// hasAPIStruct reports whether t is a struct type of k8s.io/api, or a list or map of it.
func hasAPIStruct(t reflect.Type) bool {
	for t != nil && slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, t.Kind()) {
		t = t.Elem()
	}
	return t != nil && t.Kind() == reflect.Struct && strings.HasPrefix(t.PkgPath(), "k8s.io/api/")
}

// writeUntagged writes the JSON of v to b. Structs of k8s.io/api get Go field names, all other values their JSON names.
func writeUntagged(b *bytes.Buffer, v reflect.Value) error {
	if !v.IsValid() {
		b.WriteString("null")
		return nil
	}
	if !hasAPIStruct(v.Type()) {
		return writeJSON(b, v.Interface())
	}
	switch v.Kind() {
	case reflect.Pointer:
		return writeUntagged(b, v.Elem())
	case reflect.Slice:
		if v.IsNil() {
			b.WriteString("null")
			return nil
		}
		b.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeUntagged(b, v.Index(i)); err != nil {
				return err
			}
		}
		b.WriteByte(']')
		return nil
	case reflect.Map:
		named := make(map[string]Untagged, v.Len())
		for k, e := range v.Seq2() {
			named[k.String()] = Untagged{e.Interface()}
		}
		return writeJSON(b, named)
	}
	b.WriteByte('{')
	if err := writeFields(b, v); err != nil {
		return err
	}
	b.WriteByte('}')
	return nil
}

// writeFields writes the fields of the struct v to b, without braces and with those of embedded
// structs inline as in JSON. The last byte of b must be the opening brace. It omits the type meta,
// which upstream's internal objects do not have.
func writeFields(b *bytes.Buffer, v reflect.Value) error {
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		if f.Type == typeMeta {
			continue
		}
		before := b.Len()
		separate := func() {
			if b.Bytes()[before-1] != '{' {
				b.WriteByte(',')
			}
		}
		switch {
		case f.Anonymous && hasAPIStruct(f.Type):
			var inner bytes.Buffer
			inner.WriteByte('{')
			if err := writeFields(&inner, value); err != nil {
				return err
			}
			if inner.Len() > 1 {
				separate()
				b.Write(inner.Bytes()[1:])
			}
		case f.Anonymous:
			text, err := json.Marshal(value.Interface())
			if err != nil {
				return err
			}
			if len(text) > len("{}") {
				separate()
				b.Write(text[1 : len(text)-1])
			}
		default:
			separate()
			if err := writeJSON(b, f.Name); err != nil {
				return err
			}
			b.WriteByte(':')
			if err := writeUntagged(b, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeJSON writes the JSON of v to b.
func writeJSON(b *bytes.Buffer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	b.Write(text)
	return nil
}

var typeMeta = reflect.TypeFor[metav1.TypeMeta]()
