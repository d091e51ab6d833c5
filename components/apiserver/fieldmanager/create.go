package fieldmanager

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"hyperkube/internal/api"
)

// unowned returns the fields that no manager owns, because the server sets them: apiVersion, kind
// and parts of the metadata such as name and UID.
func unowned() *fieldpath.Set {
	set := fieldpath.NewSet(fieldpath.MakePathOrDie("apiVersion"), fieldpath.MakePathOrDie("kind"), fieldpath.MakePathOrDie("metadata"))
	for _, name := range []string{
		"name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation", "managedFields", "resourceVersion",
	} {
		set.Insert(fieldpath.MakePathOrDie("metadata", name))
	}
	return set
}

// Created records manager as the owner of all fields of a new object. The result is the same as that of
// Manager.Update with an empty live object, at half the cost, because there is nothing to compare. It usually
// modifies and returns obj. If the fields cannot be determined, the object has no managed fields. An error is only
// possible for custom resources and for objects with which the client sent managed fields.
func (m *Managers) Created(res *api.Resource, obj api.Object, manager string) (api.Object, error) {
	if len(obj.GetManagedFields()) > 0 || res.Custom != nil {
		// The client sent managed fields, or the schema is specific to the resource.
		f, err := m.For(res, "")
		if err != nil {
			return nil, err
		}
		empty := res.New()
		empty.GetObjectKind().SetGroupVersionKind(res.GVK())
		out, ok := f.UpdateNoErrors(empty, obj, manager).(api.Object)
		if !ok {
			return nil, fmt.Errorf("managed fields of a new %s: not an API object", res.Kind)
		}
		return out, nil
	}
	obj.SetManagedFields(nil)
	owned, err := m.ownedBy(res, obj)
	if err != nil || owned == nil {
		return obj, nil // as in upstream, the object is written without managed fields
	}
	if manager == "" {
		manager = "unknown"
	}
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	obj.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: res.GroupVersion().String(),
		Time: &now, FieldsType: "FieldsV1", FieldsV1: owned,
	}})
	return obj, nil
}

// ownedBy returns the fields that the creator of obj owns, encoded as in managed fields. It returns nil if there are
// none. It uses the plan of the type, or the managedfields library for values that plans do not support.
func (m *Managers) ownedBy(res *api.Resource, obj api.Object) (*metav1.FieldsV1, error) {
	p, err := m.plan(res, obj)
	if err != nil {
		return nil, err
	}
	owned, err := m.writers.fields(p, reflect.ValueOf(obj).Elem())
	if errors.Is(err, errUnplanned) {
		return m.ownedByLibrary(res, obj)
	}
	return owned, err
}

// plan returns the cached plan that encodes the fields of new objects of a resource. It creates the
// plan at the first call. obj is any object of the resource.
func (m *Managers) plan(res *api.Resource, obj api.Object) (*plan, error) {
	m.mu.RLock()
	p := m.plans[res]
	m.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	types, err := m.types()
	if err != nil {
		return nil, err
	}
	fields, err := types.ObjectToTyped(obj, typed.AllowDuplicates)
	if err != nil {
		return nil, err
	}
	p = newPlan(fields.Schema(), fields.TypeRef(), reflect.TypeOf(obj), m.unowned, res.Update.ResetFields)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.plans[res] = p
	return p, nil
}

// ownedByLibrary returns the same as ownedBy, but with the managedfields library, which supports all values and is
// slower.
func (m *Managers) ownedByLibrary(res *api.Resource, obj api.Object) (*metav1.FieldsV1, error) {
	types, err := m.types()
	if err != nil {
		return nil, err
	}
	reset, err := m.resetFields(res, "")
	if err != nil {
		return nil, err
	}
	fields, err := types.ObjectToTyped(obj, typed.AllowDuplicates)
	if err != nil {
		return nil, err
	}
	set, err := fields.ToFieldSet()
	if err != nil {
		return nil, err
	}
	if set, err = differencesFromEmpty(types, res, set, fields); err != nil {
		return nil, err
	}
	set = set.Difference(m.unowned)
	if filter := reset[fieldpath.APIVersion(res.GroupVersion().String())]; filter != nil {
		set = filter.Filter(set)
	}
	if set.Empty() {
		return nil, nil
	}
	data, err := set.ToJSON()
	if err != nil {
		return nil, err
	}
	owned := &metav1.FieldsV1{}
	owned.SetRawBytes(data)
	return owned, nil
}

// differencesFromEmpty returns the fields of set in which a new object differs from an empty object
// of the resource, including maps and lists that the empty object does not have. The fields of an
// empty object are not owned. fields is the new object.
func differencesFromEmpty(types managedfields.TypeConverter, res *api.Resource, set *fieldpath.Set, fields *typed.TypedValue) (*fieldpath.Set, error) {
	empty := res.New()
	empty.GetObjectKind().SetGroupVersionKind(res.GVK())
	of, err := types.ObjectToTyped(empty, typed.AllowDuplicates)
	if err != nil {
		return nil, err
	}
	same := fieldpath.NewSet()
	collectEqual(set, same, nil, fields.AsValue(), of.AsValue())
	return set.Difference(same), nil
}

// collectEqual walks through set, the fields of a new object, together with the values of the new object (now) and of
// an empty one (before) at the path at. It inserts the fields that are equal into same, and maps and lists that only
// the new object has into set. before is nil where the empty object has no value.
func collectEqual(set, same *fieldpath.Set, at fieldpath.Path, now, before value.Value) {
	field := func(pe fieldpath.PathElement) (a, b value.Value) {
		if pe.FieldName == nil || before == nil || !before.IsMap() || now == nil || !now.IsMap() {
			return nil, nil
		}
		b, ok := before.AsMap().Get(*pe.FieldName)
		if !ok {
			return nil, nil
		}
		a, _ = now.AsMap().Get(*pe.FieldName)
		return a, b
	}
	if before != nil {
		set.Members.Iterate(func(pe fieldpath.PathElement) {
			if a, b := field(pe); a != nil && b != nil && value.Equals(a, b) {
				same.Insert(append(at.Copy(), pe))
			}
		})
	}
	set.Children.Iterate(func(pe fieldpath.PathElement) {
		child, ok := set.Children.Get(pe)
		if !ok {
			return
		}
		a, b := field(pe)
		if b == nil {
			set.Members.Insert(pe)
			collectEqual(child, same, nil, nil, nil)
			return
		}
		collectEqual(child, same, append(at.Copy(), pe), a, b)
	})
}
