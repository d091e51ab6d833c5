package fieldmanager

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// plan describes how to encode the fields of a Go type in the format of managed fields, directly from a Go value,
// without creating a fieldpath.Set first. This makes creations faster. A plan is built once per type from its schema.
// The output is byte for byte the same as the managedfields library's.
type plan struct {
	kind   planKind
	fields []fieldPlan // of a record
	elem   *plan       // of items and values
	keys   []keyPlan   // of keyed items, by name
	typ    reflect.Type
}

// planKind is the way in which a plan encodes the values of its type: as one field, or as separately owned fields,
// elements or items.
type planKind int

const (
	// unplanned values are not supported. The managedfields library must encode the object.
	unplanned planKind = iota
	// leaf values are owned as a whole: scalars, and atomic maps and lists.
	leaf
	// record values are structs whose fields are owned separately.
	record
	// mapping values are maps whose elements are owned separately.
	mapping
	// keyed values are lists whose items are identified by key fields.
	keyed
	// set values are lists of strings that are owned separately.
	set
)

// fieldPlan describes how a plan for structs encodes one field of the struct.
type fieldPlan struct {
	*value.FieldCacheEntry
	label string // `"f:name":{`
	plan  *plan
	// ownsItself means that an empty object does not have the field, so the owner of a field in it also
	// owns the field itself.
	ownsItself bool
	// zeroInEmpty means that an empty object has the field with the zero value of its type. A field with
	// that value is not owned.
	zeroInEmpty bool
	// index is the index of the struct field, or -1 for fields of an inlined pointer.
	index int
}

// keyPlan is a key field: it identifies, possibly with others, the items of a list.
type keyPlan struct {
	*value.FieldCacheEntry
	label string // `\"name\":`
	// defaultValue is the default value of a key, or "" if it has none.
	defaultValue string
}

// planner creates the plans of a type and of all types in it. known contains those already created,
// so that each is created once and types may be recursive.
type planner struct {
	schema *schema.Schema
	known  map[planKey]*plan
}

// planKey identifies a plan: the Go type, the name of its schema type ("" for unnamed ones, which
// are not in planner.known), and the parameter zero of planFor.
type planKey struct {
	typ  reflect.Type
	ref  string
	zero bool
}

// newPlan returns the plan for objects of the type typ with the schema s and ref. It leaves out the fields in skip,
// which no manager owns. It also leaves out the fields at the paths in without, with everything below them, which a
// write of the object does not change.
func newPlan(s *schema.Schema, ref schema.TypeRef, typ reflect.Type, skip *fieldpath.Set, without [][]string) *plan {
	p := planner{schema: s, known: map[planKey]*plan{}}
	root := p.planFor(typ, ref, true)
	for _, path := range without {
		root.remove(path)
	}
	skip.Iterate(func(path fieldpath.Path) {
		names := make([]string, 0, len(path))
		for _, pe := range path {
			if pe.FieldName == nil {
				return
			}
			names = append(names, *pe.FieldName)
		}
		// Other fields of skip have children and exist in empty objects anyway.
		if f := root.find(names); f != nil && f.plan.kind != record {
			root.remove(names)
		}
	})
	return root
}

// find returns the plan of the field at a path of field names. It returns nil if the path does not exist or leads
// through a map or a list.
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

// remove removes the field at a path from the plan, so that it is never owned. If an empty object
// does not have a parent of the field, that parent becomes unplanned instead.
func (p *plan) remove(path []string) {
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
			// Other uses of the same type keep the field.
			p.fields = slices.Delete(slices.Clone(p.fields), i, i+1)
		case f.ownsItself || !f.zeroInEmpty:
			f.plan = &plan{kind: unplanned}
		default:
			below := *f.plan
			p.fields = slices.Clone(p.fields)
			p.fields[i].plan = &below
			below.remove(path[1:])
		}
		return
	}
}

// planFor returns the plan of a type, which may be a pointer, with the schema ref. zero means that
// an empty object contains a zero value of this type at this place, whose fields are not owned.
func (p *planner) planFor(typ reflect.Type, ref schema.TypeRef, zero bool) *plan {
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
		p.known[key] = out // types may be recursive
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
			out.elem = p.planFor(typ.Elem(), atom.Map.ElementType, false)
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

// record completes out, the plan of a struct type with the schema m, which has no fields yet. See planFor for zero.
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
		f.ownsItself = !zero || entry.CanOmit(at)
		f.zeroInEmpty = zero && !f.ownsItself && at.Kind() != reflect.Pointer
		if sf, ok := m.FindField(entry.JsonName); ok {
			f.plan = p.planFor(at.Type(), sf.Type, f.zeroInEmpty && at.Kind() == reflect.Struct)
		} else {
			f.plan = &plan{kind: unplanned}
		}
		out.fields = append(out.fields, f)
	}
}

// keyed completes out, the plan of a list type with key fields. If the items are not structs, or the keys are neither
// strings nor integers, out remains unplanned, so the managedfields library must encode such lists.
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
			if fallback, ok := f.Default.(string); ok && needsNoEscape(fallback) {
				k.defaultValue = fallback
			}
		case reflect.Int32, reflect.Int64:
		default:
			return
		}
		out.keys = append(out.keys, k)
	}
	slices.SortFunc(out.keys, func(a, b keyPlan) int { return cmp.Compare(a.JsonName, b.JsonName) })
	out.elem = p.planFor(elem, list.ElementType, false)
	if out.elem.kind == record || out.elem.kind == leaf {
		out.kind = keyed
	}
}
