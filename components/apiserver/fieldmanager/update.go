package fieldmanager

import (
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"hyperkube/internal/api"
)

// Updated records in obj that manager made it of live. It comes to what
// Manager.UpdateNoErrors does, but the library does not compare what is the
// same in both: a status is most often all that changes.
func Updated(m *Manager, live, obj api.Object, manager string) runtime.Object {
	lessLive, lessObj := different(live, obj)
	if lessObj == nil {
		return m.UpdateNoErrors(live, obj, manager)
	}
	out, ok := m.UpdateNoErrors(lessLive, lessObj, manager).(metav1.Object)
	if !ok {
		return m.UpdateNoErrors(live, obj, manager)
	}
	obj.SetManagedFields(out.GetManagedFields())
	return obj
}

// different returns a and b without what is the same in both, but for their
// metadata; nil when there is nothing to leave out. What is left is shared.
func different(a, b api.Object) (lessA, lessB api.Object) {
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
