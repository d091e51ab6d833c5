package fieldmanager

import (
	"cmp"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// errUnplanned: a value has something that plans do not know. The library does.
var errUnplanned = errors.New("not in the plan")

// plan writes the fields of one Go type as the set that is stored in managed
// fields, without making the set first. It is made once a type; what it writes
// is, byte for byte, what the library would.
type plan struct {
	kind   planKind
	fields []fieldPlan // of a record
	elem   *plan       // of items and values
	keys   []keyPlan   // of keyed items, by name
	typ    reflect.Type
}

type planKind int

const (
	// unplanned values are left to the library.
	unplanned planKind = iota
	// leaf values are owned as a whole.
	leaf
	record
	mapping
	keyed
	set
)

// fieldPlan is one field of a record.
type fieldPlan struct {
	*value.FieldCacheEntry
	label string // `"f:name":{`
	plan  *plan
	// self: an empty object does not have the field, so who sets something in
	// it sets the field itself too.
	self bool
	// zero: an empty object has the field with the zero value of its type.
	// What is equal to that is not set by anybody.
	zero bool
	// index is where the field is, unless in an inlined pointer: -1.
	index int
}

// keyPlan is a field that identifies items of a list.
type keyPlan struct {
	*value.FieldCacheEntry
	label string // `\"name\":`
	// fallback is what a key is when it is not given; "" for none.
	fallback string
}

// planner makes plans.
type planner struct {
	schema *schema.Schema
	known  map[planKey]*plan
}

type planKey struct {
	typ  reflect.Type
	ref  string
	zero bool
}

// newPlan makes the plan of objects of a type, leaving out the fields of skip,
// and those of without with all below them.
func newPlan(s *schema.Schema, ref schema.TypeRef, typ reflect.Type, skip *fieldpath.Set, without [][]string) *plan {
	p := planner{schema: s, known: map[planKey]*plan{}}
	root := p.of(typ, ref, true)
	for _, path := range without {
		root.cut(path)
	}
	skip.Iterate(func(path fieldpath.Path) {
		names := make([]string, 0, len(path))
		for _, pe := range path {
			if pe.FieldName == nil {
				return
			}
			names = append(names, *pe.FieldName)
		}
		// Others of them have children, and are in what is empty anyway.
		if f := root.find(names); f != nil && f.plan.kind != record {
			root.cut(names)
		}
	})
	return root
}

// find returns the field at a path that an empty object has, or nil.
func (p *plan) find(path []string) *fieldPlan {
	if p.kind != record {
		return nil
	}
	for i := range p.fields {
		f := &p.fields[i]
		if f.JsonName != path[0] {
			continue
		}
		if len(path) == 1 {
			return f
		}
		return f.plan.find(path[1:])
	}
	return nil
}

// cut takes a field out of a plan. On the way to it there must be nothing that
// an empty object has not.
func (p *plan) cut(path []string) {
	if p.kind != record {
		return
	}
	for i := range p.fields {
		f := &p.fields[i]
		if f.JsonName != path[0] {
			continue
		}
		switch {
		case len(path) == 1:
			// Another place of the same type keeps its field.
			p.fields = slices.Delete(slices.Clone(p.fields), i, i+1)
		case f.self || !f.zero:
			f.plan = &plan{kind: unplanned}
		default:
			below := *f.plan
			p.fields = slices.Clone(p.fields)
			p.fields[i].plan = &below
			below.cut(path[1:])
		}
		return
	}
}

// of makes the plan of a type. Zero tells that an empty object has a zero value
// in its place.
func (p *planner) of(typ reflect.Type, ref schema.TypeRef, zero bool) *plan {
	pointer := typ.Kind() == reflect.Pointer
	if pointer {
		typ = typ.Elem()
	}
	key := planKey{typ: typ, zero: zero}
	if ref.NamedType != nil && ref.ElementRelationship == nil {
		key.ref = *ref.NamedType
		if known := p.known[key]; known != nil {
			return known
		}
	}
	out := &plan{typ: typ}
	if key.ref != "" {
		p.known[key] = out // types may contain themselves
	}
	atom, ok := p.schema.Resolve(ref)
	converts := value.TypeReflectEntryOf(typ).CanConvertToUnstructured()
	switch {
	case !ok:
	case atom.Scalar != nil && atom.Map == nil && atom.List == nil:
		out.kind = leaf
	case atom.Map != nil && atom.Scalar == nil && atom.List == nil:
		switch {
		case atom.Map.ElementRelationship == schema.Atomic:
			out.kind = leaf
		case converts:
		case typ.Kind() == reflect.Struct:
			p.record(out, atom.Map, zero)
		case typ.Kind() == reflect.Map && typ.Key().Kind() == reflect.String && len(atom.Map.Fields) == 0:
			out.elem = p.of(typ.Elem(), atom.Map.ElementType, false)
			if out.elem.kind == leaf || out.elem.kind == record {
				out.kind = mapping
			}
		}
	case atom.List != nil && atom.Scalar == nil && atom.Map == nil:
		switch {
		case atom.List.ElementRelationship == schema.Atomic:
			out.kind = leaf
		case converts || typ.Kind() != reflect.Slice || atom.List.ElementRelationship != schema.Associative:
		case len(atom.List.Keys) == 0:
			if typ.Elem().Kind() == reflect.String && !value.TypeReflectEntryOf(typ.Elem()).CanConvertToUnstructured() {
				out.kind = set
			}
		default:
			p.keyed(out, atom.List)
		}
	}
	return out
}

func (p *planner) record(out *plan, m *schema.Map, zero bool) {
	out.kind = record
	for _, entry := range value.TypeReflectEntryOf(out.typ).OrderedFields() {
		at := entry.GetFrom(reflect.Zero(out.typ))
		f := fieldPlan{FieldCacheEntry: entry, label: `"f:` + entry.JsonName + `":{`, index: -1}
		for i := range out.typ.NumField() {
			sf := out.typ.Field(i)
			if name, _, _ := strings.Cut(sf.Tag.Get("json"), ","); name == entry.JsonName && sf.Type == at.Type() {
				f.index = i
			}
		}
		f.self = !zero || entry.CanOmit(at)
		f.zero = zero && !f.self && at.Kind() != reflect.Pointer
		if sf, ok := m.FindField(entry.JsonName); ok {
			f.plan = p.of(at.Type(), sf.Type, f.zero && at.Kind() == reflect.Struct)
		} else {
			f.plan = &plan{kind: unplanned}
		}
		out.fields = append(out.fields, f)
	}
}

func (p *planner) keyed(out *plan, list *schema.List) {
	elem := out.typ.Elem()
	if elem.Kind() != reflect.Struct || value.TypeReflectEntryOf(elem).CanConvertToUnstructured() {
		return
	}
	item, ok := p.schema.Resolve(list.ElementType)
	if !ok || item.Map == nil {
		return
	}
	all := value.TypeReflectEntryOf(elem).Fields()
	for _, name := range list.Keys {
		entry := all[name]
		if entry == nil || entry.TypeEntry.CanConvertToUnstructured() {
			return
		}
		k := keyPlan{FieldCacheEntry: entry, label: `\"` + name + `\":`}
		switch entry.GetFrom(reflect.Zero(elem)).Kind() {
		case reflect.String:
			f, _ := item.Map.FindField(name)
			if fallback, ok := f.Default.(string); ok && plainText(fallback) {
				k.fallback = fallback
			}
		case reflect.Int32, reflect.Int64:
		default:
			return
		}
		out.keys = append(out.keys, k)
	}
	slices.SortFunc(out.keys, func(a, b keyPlan) int { return cmp.Compare(a.JsonName, b.JsonName) })
	out.elem = p.of(elem, list.ElementType, false)
	if out.elem.kind == record || out.elem.kind == leaf {
		out.kind = keyed
	}
}

// fieldWriter writes what plans say.
type fieldWriter struct {
	buf []byte
	err error
}

// begin writes the label of an element, which ends with a brace, and returns
// where to cut off again if nothing follows.
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

// object writes the fields of an object; it is empty when nobody owns any.
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

// record writes the fields of a struct and tells how many it has that are not
// left out of its JSON.
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
			if f.self { // null, where an empty object has nothing
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
		if f.zero && isZero(v) {
			return
		}
		w.begin(f.label)
		w.buf = append(w.buf, '}')
		return
	}
	start := w.begin(f.label)
	before := len(w.buf)
	if f.self {
		w.buf = append(w.buf, `".":{}`...)
	}
	first := len(w.buf)
	empty := false
	switch f.plan.kind {
	case record:
		empty = w.record(f.plan, v) == 0 && (f.self || !f.zero)
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

// isZero tells whether v looks in JSON as the zero value of its type does.
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

// element writes an item of a list or a value of a map, whose label has been
// begun: who owns something in it owns it too.
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
		if !plainText(name) {
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
		if !plainText(items[i]) {
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

// item is a keyed one with its keys, of which there are few.
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
			case k.CanOmit(at) && k.fallback == "":
				w.fail()
				return
			case k.CanOmit(at):
				items[i].keys[j].text = k.fallback
			case at.Kind() == reflect.String:
				items[i].keys[j].text = at.String()
			default:
				items[i].keys[j].number = at.Int()
			}
			if !plainText(items[i].keys[j].text) {
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

// plainText tells whether a string looks in JSON as it is.
func plainText(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= 0x7f, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// writers keeps the buffers of fieldWriters.
type writers struct{ pool sync.Pool }

// fields returns what a plan says of an object: nil when nobody owns anything.
func (p *writers) fields(of *plan, v reflect.Value) ([]byte, error) {
	w, _ := p.pool.Get().(*fieldWriter)
	if w == nil {
		w = &fieldWriter{}
	}
	defer p.pool.Put(w)
	w.buf, w.err = w.buf[:0], nil
	data, err := w.object(of, v)
	return slices.Clone(data), err
}
