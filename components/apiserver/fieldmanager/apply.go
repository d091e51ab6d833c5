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

// lastApplied is the annotation of kubectl's client-side apply. The managedfields library maintains it for objects
// whose clients switch to server-side apply, so the fast path is not used for these.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// By describes who writes an object: the field manager's name, and the resource and subresource
// that it writes.
type By struct {
	// Resource and Subresource are the target of the write. If Resource is nil, the write is always
	// handled by the library, without a fast path.
	Resource    *api.Resource
	Subresource string
	// Fields is the library's field manager for this resource and subresource.
	Fields *Manager
	// Manager is the name of the field manager, as in managed fields.
	Manager string
}

// entryIndex returns the index of the managed fields entry of this writer for operation. It returns -1 if there is
// none. It also returns -1 if some entry is of another version or format, or is a duplicate, because the
// managedfields library must then convert and merge the entries.
func (b *By) entryIndex(entries []metav1.ManagedFieldsEntry, operation metav1.ManagedFieldsOperationType) int {
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
	if mine < 0 || hasDuplicates(entries) {
		return -1
	}
	return mine
}

// schema returns what Created, Updated and Applied need to bypass the slower managedfields library: a converter from
// objects to typed values, and the filter of the fields that b may write. A nil filter means all fields.
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

// Applied returns the result of the server-side apply of config to live, or an error if it conflicts with other
// managers; with force it takes over their fields instead. Usually a client applies the same fields as before. Then
// no field must be removed from live, and Applied skips the managedfields library's expensive check for that. The
// result is the same as that of the library's Apply (see TestReapplied). Applied takes ownership of config.
func (m *Managers) Applied(by By, live api.Object, config *unstructured.Unstructured, force bool) (runtime.Object, error) {
	if by.Resource != nil {
		if obj := m.reapplied(&by, live, config); obj != nil {
			return obj, nil
		}
	}
	return by.Fields.Apply(live, config, by.Manager, force)
}

// reapplied is the fast path of Applied for built-in kinds: the fields of config are exactly those that the manager
// owns already, and no other manager owns a changed one. It returns nil if it is not applicable or an error occurs,
// and then the managedfields library must apply config.
func (m *Managers) reapplied(by *By, live api.Object, config *unstructured.Unstructured) api.Object {
	res := by.Resource
	if res.Custom != nil || config.GroupVersionKind() != res.GVK() {
		return nil
	}
	entries := live.GetManagedFields()
	mine := by.entryIndex(entries, metav1.ManagedFieldsOperationApply)
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
	less, restore := withoutUnapplied(live, config.Object)
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
	if hasConflicts(entries, mine, before, difference.Modified.Union(difference.Added)) {
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
	slices.SortStableFunc(entries, compareEntries)
	obj.SetManagedFields(entries)
	return obj
}

// covers reports whether the fields of wanted that pass filter are exactly those that the managed fields entry e
// owns. A nil filter passes all. It returns false if the fields cannot be determined.
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

// objectOf converts a typed value, the result of a merge, to a Go object of the resource.
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
		return nil, fmt.Errorf("%T is not an API object", versioned)
	}
	return obj, nil
}

// hasConflicts reports whether the fast path must not be used, because an entry other than entries[mine] owns a
// changed field, is invalid, or contains fields that must be adapted to the current schema. The managedfields library
// handles these cases.
func hasConflicts(entries []metav1.ManagedFieldsEntry, mine int, live *typed.TypedValue, changes *fieldpath.Set) bool {
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

// withoutUnapplied returns a shallow copy of obj without managed fields and without the top-level
// parts that config does not have, such as the status. This makes the merge cheaper. restore copies
// these parts to the merged object.
func withoutUnapplied(obj api.Object, config map[string]any) (less api.Object, restore func(api.Object)) {
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

// compareEntries is the order in which managed fields entries are stored: by operation, time,
// manager, version and subresource.
func compareEntries(a, b metav1.ManagedFieldsEntry) int {
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
