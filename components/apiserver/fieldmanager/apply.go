package fieldmanager

import (
	"bytes"
	"cmp"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"hyperkube/internal/api"
)

// lastApplied is the annotation that the library keeps for clients which turn
// from client-side apply to server-side apply.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Applied applies config to live by f, the manager of res at a subresource; res
// nil: by f alone. Most
// often somebody applies the same fields again: then nothing is taken away from
// live, and what the library does to find out is left out. It comes to what
// f.Apply does (TestReapplied); config is its own afterwards.
func (m *Managers) Applied(res *api.Resource, subresource string, f *Manager, live api.Object, config *unstructured.Unstructured, manager string, force bool) (runtime.Object, error) {
	if res != nil {
		if obj := m.reapplied(res, subresource, live, config, manager); obj != nil {
			return obj, nil
		}
	}
	return f.Apply(live, config, manager, force)
}

// reapplied is nil when it is not that simple, for whatever reason.
func (m *Managers) reapplied(res *api.Resource, subresource string, live api.Object, config *unstructured.Unstructured, manager string) api.Object {
	if res.Custom != nil || config.GroupVersionKind() != res.GVK() {
		return nil
	}
	version := res.GroupVersion().String()
	entries := live.GetManagedFields()
	mine := -1
	for i := range entries {
		e := &entries[i]
		if e.APIVersion != version || e.FieldsType != "FieldsV1" || e.FieldsV1 == nil {
			return nil
		}
		if e.Manager == manager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == subresource {
			mine = i
		}
	}
	if mine < 0 || alike(entries) {
		return nil
	}
	if _, kept := live.GetAnnotations()[lastApplied]; kept && manager == "kubectl" {
		return nil
	}
	if meta, ok := config.Object["metadata"].(map[string]any); ok && meta["managedFields"] != nil {
		return nil
	}
	types, err := m.types()
	if err != nil {
		return nil
	}
	reset, err := m.resetFields(res, subresource)
	if err != nil {
		return nil
	}
	filter := reset[fieldpath.APIVersion(version)]
	wanted, err := types.ObjectToTyped(config)
	if err != nil {
		return nil
	}
	set, err := wanted.ToFieldSet()
	if err != nil {
		return nil
	}
	if filter != nil {
		set = filter.Filter(set)
	}
	data, err := set.Difference(m.unowned).ToJSON()
	if err != nil || !bytes.Equal(data, entries[mine].FieldsV1.GetRawBytes()) {
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
	made, err := types.TypedToObject(after)
	if err != nil {
		return nil
	}
	versioned, err := kindOf{Resource: res}.ConvertToVersion(made, res.GroupVersion())
	if err != nil {
		return nil
	}
	obj, ok := versioned.(api.Object)
	if !ok {
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
