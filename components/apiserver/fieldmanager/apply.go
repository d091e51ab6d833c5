package fieldmanager

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"hyperkube/internal/api"
)

// lastApplied is the annotation that the library keeps for clients which turn
// from client-side apply to server-side apply.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// By is who writes an object.
type By struct {
	// Resource is what is written, Subresource by which path; a nil Resource has no short
	// ways.
	Resource    *api.Resource
	Subresource string
	// Fields is the library's manager of both.
	Fields *Manager
	// Manager is the name that fields get as their owner's.
	Manager string
}

// own returns which of an object's entries is the one for operation. It is -1 when there is
// none, and when the library decides: it converts entries that are not of the version that
// is written, and keeps one of those that are alike.
func (b *By) own(entries []metav1.ManagedFieldsEntry, operation metav1.ManagedFieldsOperationType) int {
	version := b.Resource.GroupVersion().String()
	mine := -1
	for i := range entries {
		e := &entries[i]
		if e.APIVersion != version || e.FieldsType != "FieldsV1" || e.FieldsV1 == nil {
			return -1
		}
		if e.Manager == b.Manager && e.Operation == operation && e.Subresource == b.Subresource {
			mine = i
		}
	}
	if mine < 0 || alike(entries) {
		return -1
	}
	return mine
}

// schema returns what reads objects as trees of fields, and the filter of those fields that
// are b's to write; nil: all are.
func (m *Managers) schema(b *By) (managedfields.TypeConverter, fieldpath.Filter, error) {
	types, err := m.types()
	if err != nil {
		return nil, nil, err
	}
	reset, err := m.resetFields(b.Resource, b.Subresource)
	if err != nil {
		return nil, nil, err
	}
	return types, reset[fieldpath.APIVersion(b.Resource.GroupVersion().String())], nil
}

// Applied applies config to live. Most often somebody applies the same fields again: then
// nothing is taken away from live, and what the library does to find out is left out. It
// comes to what the library's Apply does (TestReapplied); config is its own afterwards.
func (m *Managers) Applied(by By, live api.Object, config *unstructured.Unstructured, force bool) (runtime.Object, error) {
	if by.Resource != nil {
		if obj := m.reapplied(&by, live, config); obj != nil {
			return obj, nil
		}
	}
	return by.Fields.Apply(live, config, by.Manager, force)
}

// reapplied is nil when it is not that simple, for whatever reason.
func (m *Managers) reapplied(by *By, live api.Object, config *unstructured.Unstructured) api.Object {
	res := by.Resource
	if res.Custom != nil || config.GroupVersionKind() != res.GVK() {
		return nil
	}
	entries := live.GetManagedFields()
	mine := by.own(entries, metav1.ManagedFieldsOperationApply)
	if mine < 0 {
		return nil
	}
	if _, kept := live.GetAnnotations()[lastApplied]; kept && by.Manager == "kubectl" {
		return nil
	}
	if meta, ok := config.Object["metadata"].(map[string]any); ok && meta["managedFields"] != nil {
		return nil
	}
	types, filter, err := m.schema(by)
	if err != nil {
		return nil
	}
	wanted, err := types.ObjectToTyped(config)
	if err != nil || !m.covers(wanted, filter, &entries[mine]) {
		return nil
	}
	less, restore := without(live, config.Object)
	before, err := types.ObjectToTyped(less, typed.AllowDuplicates)
	if err != nil {
		return nil
	}
	after, err := before.Merge(wanted)
	if err != nil {
		return nil
	}
	difference, err := before.Compare(after)
	if err != nil || !difference.Removed.Empty() {
		return nil
	}
	if difference.IsSame() {
		return live.DeepCopyObject().(api.Object)
	}
	if filter != nil {
		difference = difference.FilterFields(filter)
	}
	if taken(entries, mine, before, difference.Modified.Union(difference.Added)) {
		return nil
	}
	obj, err := objectOf(types, after, res)
	if err != nil {
		return nil
	}
	restore(obj)
	res.Default(obj)
	entries = slices.Clone(entries)
	entries[mine].Time = &metav1.Time{Time: time.Now().UTC()}
	slices.SortStableFunc(entries, inOrder)
	obj.SetManagedFields(entries)
	return obj
}

// covers tells whether e owns just the fields that wanted has.
func (m *Managers) covers(wanted *typed.TypedValue, filter fieldpath.Filter, e *metav1.ManagedFieldsEntry) bool {
	set, err := wanted.ToFieldSet()
	if err != nil {
		return false
	}
	if filter != nil {
		set = filter.Filter(set)
	}
	data, err := set.Difference(m.unowned).ToJSON()
	return err == nil && bytes.Equal(data, e.FieldsV1.GetRawBytes())
}

// objectOf makes an object of res of a tree of fields.
func objectOf(types managedfields.TypeConverter, tree *typed.TypedValue, res *api.Resource) (api.Object, error) {
	made, err := types.TypedToObject(tree)
	if err != nil {
		return nil, err
	}
	versioned, err := kindOf{Resource: res}.ConvertToVersion(made, res.GroupVersion())
	if err != nil {
		return nil, err
	}
	obj, ok := versioned.(api.Object)
	if !ok {
		return nil, fmt.Errorf("%T is no object", versioned)
	}
	return obj, nil
}

// taken tells whether a manager other than entries[mine] owns something of what
// changes, or has fields that are of an older schema: the library decides.
func taken(entries []metav1.ManagedFieldsEntry, mine int, live *typed.TypedValue, changes *fieldpath.Set) bool {
	for i := range entries {
		if i == mine {
			continue
		}
		var owned fieldpath.Set
		if err := owned.FromJSON(bytes.NewReader(entries[i].FieldsV1.GetRawBytes())); err != nil {
			return true
		}
		if !owned.Intersection(changes).Empty() {
			return true
		}
		if reconciled, err := typed.ReconcileFieldSetWithSchema(&owned, live); err != nil || reconciled != nil {
			return true
		}
	}
	return false
}

// without returns obj without managed fields and without what is no part of a
// configuration, such as the status, and what puts that into another object.
func without(obj api.Object, config map[string]any) (less api.Object, restore func(api.Object)) {
	from := reflect.ValueOf(obj).Elem()
	copied := reflect.New(from.Type())
	copied.Elem().Set(from)
	less = copied.Interface().(api.Object)
	less.SetManagedFields(nil)
	var left []int
	for i := range from.NumField() {
		f := from.Type().Field(i)
		if f.Anonymous || !f.IsExported() || f.Type.Kind() != reflect.Struct {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if _, ok := config[name]; !ok && name != "" {
			copied.Elem().Field(i).SetZero()
			left = append(left, i)
		}
	}
	return less, func(to api.Object) {
		if len(left) == 0 {
			return
		}
		rest := reflect.New(from.Type())
		for _, i := range left {
			rest.Elem().Field(i).Set(from.Field(i))
		}
		deep := reflect.ValueOf(rest.Interface().(api.Object).DeepCopyObject()).Elem()
		for _, i := range left {
			reflect.ValueOf(to).Elem().Field(i).Set(deep.Field(i))
		}
	}
}

// inOrder is how managed fields are sorted.
func inOrder(a, b metav1.ManagedFieldsEntry) int {
	seconds := func(e *metav1.ManagedFieldsEntry) int64 {
		if e.Time == nil {
			return 0
		}
		return e.Time.Unix()
	}
	return cmp.Or(
		cmp.Compare(a.Operation, b.Operation), cmp.Compare(seconds(&a), seconds(&b)), cmp.Compare(a.Manager, b.Manager),
		cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Subresource, b.Subresource),
	)
}
