package fieldmanager

import (
	"bytes"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"hyperkube/internal/api"
)

// Updated records in obj which fields the update of live has changed. The result is the same as
// that of the library's UpdateNoErrors, with two shortcuts: the library only compares the parts
// that differ, because often only the status changes. And if the writer already owns all changed
// fields, only the time of its entry changes.
func (m *Managers) Updated(by By, live, obj api.Object) runtime.Object {
	lessLive, lessObj := differingParts(live, obj)
	if lessObj == nil {
		lessLive, lessObj = live, obj
	}
	if by.Resource != nil && m.updatedSameOwner(&by, live, obj, lessLive, lessObj) {
		return obj
	}
	out, ok := by.Fields.UpdateNoErrors(lessLive, lessObj, by.Manager).(metav1.Object)
	if !ok {
		return by.Fields.UpdateNoErrors(live, obj, by.Manager)
	}
	obj.SetManagedFields(out.GetManagedFields())
	return obj
}

// updatedSameOwner implements the second shortcut of Updated. It returns false and does not change obj
// if other managers own changed fields. lessLive and lessObj contain the parts that differ.
func (m *Managers) updatedSameOwner(by *By, live, obj, lessLive, lessObj api.Object) bool {
	entries := live.GetManagedFields()
	if by.Resource.Custom != nil || len(entries) == 0 || len(entries) > maxUpdaters || by.Manager == "" {
		return false
	}
	if given := obj.GetManagedFields(); by.Subresource == "" && given != nil && !sameEntries(given, entries) {
		return false // the client sent managed fields
	}
	mine := by.entryIndex(entries, metav1.ManagedFieldsOperationUpdate)
	if mine < 0 {
		return false
	}
	types, filter, err := m.schema(by)
	if err != nil {
		return false
	}
	before, err := types.ObjectToTyped(plainOf(lessLive), typed.AllowDuplicates)
	if err != nil {
		return false
	}
	after, err := types.ObjectToTyped(plainOf(lessObj), typed.AllowDuplicates)
	if err != nil {
		return false
	}
	difference, err := before.Compare(after)
	if err != nil {
		return false
	}
	if filter != nil {
		difference = difference.FilterFields(filter)
	}
	if !difference.Removed.Difference(m.unowned).Empty() {
		return false
	}
	changes := difference.Modified.Union(difference.Added).Difference(m.unowned)
	if hasConflicts(entries, mine, before, changes) {
		return false
	}
	var owned fieldpath.Set
	if err := owned.FromJSON(bytes.NewReader(entries[mine].FieldsV1.GetRawBytes())); err != nil || !changes.Difference(&owned).Empty() {
		return false
	}
	if reconciled, err := typed.ReconcileFieldSetWithSchema(&owned, before); err != nil || reconciled != nil {
		return false
	}
	entries = slices.Clone(entries)
	if !changes.Empty() {
		entries[mine].Time = &metav1.Time{Time: time.Now().UTC()}
		slices.SortStableFunc(entries, compareEntries)
	}
	obj.SetManagedFields(entries)
	return true
}

// hasDuplicates reports whether two entries have the same manager, which is possible for scale. The library
// keeps the last one.
func hasDuplicates(entries []metav1.ManagedFieldsEntry) bool {
	for i := range entries {
		for j := range entries[:i] {
			a, b := &entries[i], &entries[j]
			if a.Manager == b.Manager && a.Operation == b.Operation && a.Subresource == b.Subresource &&
				(a.APIVersion == b.APIVersion || a.Operation == metav1.ManagedFieldsOperationApply) {
				return true
			}
		}
	}
	return false
}

// maxUpdaters is the number of entries up to which the library does not merge entries.
const maxUpdaters = 10

// plainOf returns obj without managed fields. It shares the rest.
func plainOf(obj api.Object) api.Object {
	if obj.GetManagedFields() == nil {
		return obj
	}
	from := reflect.ValueOf(obj).Elem()
	to := reflect.New(from.Type())
	to.Elem().Set(from)
	out := to.Interface().(api.Object)
	out.SetManagedFields(nil)
	return out
}

// sameEntries reports whether two lists of managed fields are equal.
func sameEntries(a, b []metav1.ManagedFieldsEntry) bool {
	if !SameButTimes(a, b) {
		return false
	}
	for i := range a {
		if !a[i].Time.Equal(b[i].Time) {
			return false
		}
	}
	return true
}

// differingParts returns a and b without the parts that are equal, except for their metadata. It returns
// nil if there is nothing to leave out. The results share memory with a and b.
func differingParts(a, b api.Object) (lessA, lessB api.Object) {
	t := reflect.TypeOf(a)
	if t != reflect.TypeOf(b) || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil, nil
	}
	from, to := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	var less, other reflect.Value
	for i := range from.NumField() {
		f := t.Elem().Field(i)
		if f.Anonymous || !f.IsExported() || f.Type.Kind() != reflect.Struct {
			continue
		}
		if !reflect.DeepEqual(from.Field(i).Addr().Interface(), to.Field(i).Addr().Interface()) {
			continue
		}
		if !less.IsValid() {
			less, other = reflect.New(t.Elem()), reflect.New(t.Elem())
			less.Elem().Set(from)
			other.Elem().Set(to)
		}
		less.Elem().Field(i).SetZero()
		other.Elem().Field(i).SetZero()
	}
	if !less.IsValid() {
		return nil, nil
	}
	return less.Interface().(api.Object), other.Interface().(api.Object)
}
