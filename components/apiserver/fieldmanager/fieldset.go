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

// errUnplanned means that a value is not supported by plans. The library handles it.
var errUnplanned = errors.New("not in the plan")

// fieldWriter encodes field sets according to plans.
type fieldWriter struct {
	buf []byte
	err error
}

// begin writes the label of an element, which ends with a brace, and returns the position to which
// the caller truncates if nothing follows.
func (w *fieldWriter) begin(label string) int {
	at := len(w.buf)
	w.comma()
	w.buf = append(w.buf, label...)
	return at
}

func (w *fieldWriter) comma() {
	if n := len(w.buf); n > 0 && w.buf[n-1] != '{' {
		w.buf = append(w.buf, ',')
	}
}

func (w *fieldWriter) fail() { w.err = errUnplanned }

// object returns the field set of an object. It is empty if no field is owned.
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

// record writes the fields of a struct and returns the number of fields that are present in its
// JSON.
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

// isZero reports whether v has the same JSON as the zero value of its type.
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

// element writes an item of a list or a value of a map after its label. The owner of a field in the
// element also owns the element.
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

// item is a list item with its keys.
type item struct {
	index int
	keys  [4]itemKey
}

type itemKey struct {
	text   string
	number int64
}

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

// needsNoEscape reports whether a string needs no escaping in JSON.
func needsNoEscape(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= 0x7f, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// writerPool is a pool of fieldWriters and their buffers.
type writerPool struct{ pool sync.Pool }

// fields returns the field set of an object according to a plan, or nil if no field is owned.
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
