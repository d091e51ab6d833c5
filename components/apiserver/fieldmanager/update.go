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

// Updated returns obj, the new state of live, with managed fields that record by as the owner of the changed fields.
// The result is the same as that of the managedfields library's UpdateNoErrors, with two shortcuts: the library only
// compares the top-level parts that differ, because often only the status changes. And if the writer already owns all
// changed fields, only the time of its entry changes.
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

// updatedSameOwner is the second shortcut of Updated: it sets the managed fields of obj to those of
// live with a new time. It returns false and does not change obj if the shortcut is not applicable,
// for example because the writer does not own all changed fields. lessLive and lessObj contain only
// the parts that differ.
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

// hasDuplicates reports whether two entries have the same manager, operation and subresource, which is possible after
// writes of the scale subresource. The managedfields library keeps the last one.
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

// maxUpdaters is the number of managed fields entries of updates that an object may have. If there are more, the
// managedfields library merges the oldest ones into one.
const maxUpdaters = 10

// plainOf returns obj without managed fields. If obj has some, it is a shallow copy.
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

// sameEntries reports whether two lists of managed fields are equal, including the times.
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

// differingParts returns shallow copies of a and b without the top-level parts, such as spec and
// status, that are equal in both. The metadata is always included. It returns nil if all parts
// differ or the types do. The results share memory with a and b.
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
