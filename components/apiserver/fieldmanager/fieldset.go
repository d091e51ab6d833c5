package fieldmanager

import (
	"cmp"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// errUnplanned means that an object contains a value that the precomputed encoding of its type, the plan, does not
// support. The slower managedfields library must then encode its fields.
var errUnplanned = errors.New("not in the plan")

// fieldWriter encodes the fields of one object in the format of managed fields (FieldsV1),
// according to the plan of its type. err is errUnplanned if the object contains an unsupported
// value.
type fieldWriter struct {
	buf []byte
	err error
}

// begin writes the label of a field, which ends with an opening brace. It returns the previous
// length of the buffer, to which the caller truncates if it turns out that the field is not owned.
func (w *fieldWriter) begin(label string) int {
	at := len(w.buf)
	w.comma()
	w.buf = append(w.buf, label...)
	return at
}

// comma writes a comma unless the next element is the first one in its braces.
func (w *fieldWriter) comma() {
	if n := len(w.buf); n > 0 && w.buf[n-1] != '{' {
		w.buf = append(w.buf, ',')
	}
}

// fail sets w.err to errUnplanned, so that the managedfields library encodes the object instead of this writer.
func (w *fieldWriter) fail() { w.err = errUnplanned }

// object encodes the fields of the API object v that its creator owns, and returns them in the format of managed
// fields. The result is empty if no field is owned. It is part of w.buf and valid until the writer is used again. It
// returns errUnplanned if the object contains a value that the plan does not support.
func (w *fieldWriter) object(p *plan, v reflect.Value) ([]byte, error) {
	w.buf = append(w.buf, '{')
	if p.kind != record {
		return nil, errUnplanned
	}
	w.record(p, v)
	if w.err != nil {
		return nil, w.err
	}
	if len(w.buf) == 1 {
		return nil, nil
	}
	w.buf = append(w.buf, '}')
	return w.buf, nil
}

// record writes the owned fields of the struct v. It returns the number of fields that are present
// in the JSON of v, owned or not.
func (w *fieldWriter) record(p *plan, v reflect.Value) (present int) {
	for i := range p.fields {
		f := &p.fields[i]
		var at reflect.Value
		if f.index >= 0 {
			at = v.Field(f.index)
		} else {
			at = f.GetFrom(v)
		}
		if f.CanOmit(at) {
			continue
		}
		present++
		w.field(f, at)
		if w.err != nil {
			return present
		}
	}
	return present
}

// field writes the field f of a struct, whose value is v, with everything below it. It writes
// nothing if neither the field nor anything below it is owned.
func (w *fieldWriter) field(f *fieldPlan, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		if v.IsNil() {
			if f.ownsItself { // null where an empty object has no value
				w.begin(f.label)
				w.buf = append(w.buf, '}')
			}
			return
		}
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
	}
	if f.plan.kind == leaf {
		if f.zeroInEmpty && isZero(v) {
			return
		}
		w.begin(f.label)
		w.buf = append(w.buf, '}')
		return
	}
	start := w.begin(f.label)
	before := len(w.buf)
	if f.ownsItself {
		w.buf = append(w.buf, `".":{}`...)
	}
	first := len(w.buf)
	empty := false
	switch f.plan.kind {
	case record:
		empty = w.record(f.plan, v) == 0 && (f.ownsItself || !f.zeroInEmpty)
	case mapping:
		empty = v.Len() == 0
		w.mapping(f.plan, v)
	case keyed:
		w.keyed(f.plan, v)
	case set:
		w.set(v)
	default:
		w.fail()
	}
	switch {
	case len(w.buf) > first:
		w.buf = append(w.buf, '}')
	case empty:
		w.buf = append(w.buf[:before], '}')
	default:
		w.buf = w.buf[:start]
	}
}

// isZero reports whether the JSON of v is the same as that of the zero value of its type.
func isZero(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.IsNil()
	case reflect.Struct:
		if v.IsZero() {
			return true
		}
		at := reflect.New(v.Type())
		at.Elem().Set(v)
		now, err := value.NewValueReflect(at.Interface())
		if err != nil {
			return false
		}
		zero, err := value.NewValueReflect(reflect.New(v.Type()).Interface())
		return err == nil && value.Equals(now, zero)
	}
	return v.IsZero()
}

// element writes the content of a list item or map value, after its label and opening brace. The
// owner of a field in the element also owns the element itself.
func (w *fieldWriter) element(p *plan, v reflect.Value) {
	if p.kind == record {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				w.buf = append(w.buf, '}')
				return
			}
			v = v.Elem()
		}
		before := len(w.buf)
		w.buf = append(w.buf, `".":{}`...)
		first := len(w.buf)
		w.record(p, v)
		if len(w.buf) == first {
			w.buf = w.buf[:before]
		}
	}
	w.buf = append(w.buf, '}')
}

// mapping writes the owned elements of the map v, sorted by key, with the plan p of the map type. It fails if a key
// needs escape sequences in JSON.
func (w *fieldWriter) mapping(p *plan, v reflect.Value) {
	var few [16]string
	names := few[:0]
	if m, ok := v.Interface().(map[string]string); ok {
		for name := range m {
			names = append(names, name)
		}
	} else {
		for it := v.MapRange(); it.Next(); {
			names = append(names, it.Key().String())
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if !needsNoEscape(name) {
			w.fail()
			return
		}
		w.comma()
		w.buf = append(append(append(w.buf, `"f:`...), name...), `":{`...)
		if p.elem.kind == leaf {
			w.buf = append(w.buf, '}')
			continue
		}
		w.element(p.elem, v.MapIndex(reflect.ValueOf(name).Convert(v.Type().Key())))
	}
}

// set writes the items of a list of strings that is a set, sorted and without duplicates. It fails if an item needs
// escape sequences in JSON.
func (w *fieldWriter) set(v reflect.Value) {
	items := make([]string, v.Len())
	for i := range items {
		items[i] = v.Index(i).String()
		if !needsNoEscape(items[i]) {
			w.fail()
			return
		}
	}
	slices.Sort(items)
	for _, item := range slices.Compact(items) {
		w.comma()
		w.buf = append(append(append(w.buf, `"v:\"`...), item...), `\"":{}`...)
	}
}

// item is the position of an item in a keyed list, with the values of the fields that identify it,
// in the order of plan.keys.
type item struct {
	index int
	keys  [4]itemKey
}

// itemKey is the value of one identifying field: text for strings, number for integers.
type itemKey struct {
	text   string
	number int64
}

// keyed writes the items of a list whose items are identified by key fields, such as containers by name, sorted by
// keys. If several items have the same keys, only the item itself is owned, not its fields.
func (w *fieldWriter) keyed(p *plan, v reflect.Value) {
	if len(p.keys) > len(item{}.keys) {
		w.fail()
		return
	}
	items := make([]item, v.Len())
	for i := range items {
		items[i].index = i
		for j := range p.keys {
			k := &p.keys[j]
			at := k.GetFrom(v.Index(i))
			switch {
			case k.CanOmit(at) && k.defaultValue == "":
				w.fail()
				return
			case k.CanOmit(at):
				items[i].keys[j].text = k.defaultValue
			case at.Kind() == reflect.String:
				items[i].keys[j].text = at.String()
			default:
				items[i].keys[j].number = at.Int()
			}
			if !needsNoEscape(items[i].keys[j].text) {
				w.fail()
				return
			}
		}
	}
	compare := func(a, b item) int {
		for j := range p.keys {
			if c := cmp.Or(cmp.Compare(a.keys[j].number, b.keys[j].number), cmp.Compare(a.keys[j].text, b.keys[j].text)); c != 0 {
				return c
			}
		}
		return 0
	}
	slices.SortFunc(items, compare)
	for i := 0; i < len(items); i++ {
		it := &items[i]
		w.comma()
		w.buf = append(w.buf, `"k:{`...)
		for j := range p.keys {
			if j > 0 {
				w.buf = append(w.buf, ',')
			}
			w.buf = append(w.buf, p.keys[j].label...)
			if k := &p.keys[j]; k.GetFrom(v.Index(it.index)).Kind() == reflect.String {
				w.buf = append(append(append(w.buf, `\"`...), it.keys[j].text...), `\"`...)
			} else {
				w.buf = strconv.AppendInt(w.buf, it.keys[j].number, 10)
			}
		}
		w.buf = append(w.buf, `}":{`...)
		twice := false
		for i+1 < len(items) && compare(items[i+1], *it) == 0 {
			twice = true
			i++
		}
		if twice {
			w.buf = append(w.buf, '}')
			continue
		}
		w.element(p.elem, v.Index(it.index))
	}
}

// needsNoEscape reports whether the JSON of the string s is s in quotes, without escape sequences.
// Plans only support such strings.
func needsNoEscape(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= 0x7f, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// writerPool is a pool of fieldWriters, whose buffers are reused. It is safe for concurrent use.
type writerPool struct{ pool sync.Pool }

// fields returns the fields of the object v that its creator owns, according to the plan of its type. It returns nil
// if no field is owned, and errUnplanned if the managedfields library must encode them.
func (p *writerPool) fields(of *plan, v reflect.Value) (*metav1.FieldsV1, error) {
	w, _ := p.pool.Get().(*fieldWriter)
	if w == nil {
		w = &fieldWriter{}
	}
	defer p.pool.Put(w)
	w.buf, w.err = w.buf[:0], nil
	data, err := w.object(of, v)
	if err != nil || len(data) == 0 {
		return nil, err
	}
	owned := &metav1.FieldsV1{}
	owned.SetRawBytes(data) // copies data
	return owned, nil
}
