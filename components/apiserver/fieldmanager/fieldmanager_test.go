package fieldmanager

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"hyperkube/internal/api"
	"hyperkube/internal/api/catalog"
)

// TestSchemas checks that every kind has a schema. Without one, managed fields would silently not
// be maintained.
func TestSchemas(t *testing.T) {
	m := New(nil)
	types, err := m.types()
	if err != nil {
		t.Fatal(err)
	}
	for _, res := range catalog.Resources() {
		if res.Review {
			continue
		}
		obj := res.New()
		obj.GetObjectKind().SetGroupVersionKind(res.GVK())
		if _, err := types.ObjectToTyped(obj); err != nil {
			t.Errorf("%s: %v", res.GVK(), err)
		}
		for view := range res.Views {
			if _, err := m.For(res, view); err != nil {
				t.Errorf("%s/%s: %v", res.GVR(), view, err)
			}
		}
	}
}

func TestName(t *testing.T) {
	for _, tc := range []struct{ manager, agent, want string }{
		{"me", "kubectl/v1", "me"},
		{"", "kubectl/v1.32 (linux)", "kubectl"},
		{"", "", ""},
		{"", "a\x00b/1", "ab"},
	} {
		if got := Name(tc.manager, tc.agent); got != tc.want {
			t.Errorf("%q %q: %q", tc.manager, tc.agent, got)
		}
	}
}

// filler returns a generator of random objects that clients could send.
func filler() *randfill.Filler {
	return randfill.NewWithSeed(1).NilChance(0.3).NumElements(1, 2).MaxDepth(12).Funcs(
		func(v *resource.Quantity, c randfill.Continue) {
			*v = *resource.NewQuantity(int64(c.Intn(9)), resource.DecimalSI)
		},
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.FromInt32(int32(c.Intn(9))) },
		func(v *metav1.Time, c randfill.Continue) { *v = metav1.Unix(int64(c.Intn(9)), 0) },
		func(v *metav1.MicroTime, c randfill.Continue) {
			*v = metav1.NewMicroTime(time.Unix(int64(c.Intn(9)), 0))
		},
		func(v *string, c randfill.Continue) {
			switch c.Intn(400) {
			case 0:
				*v = c.String(0)
			case 1:
				*v = ""
			default:
				*v = string(rune('a'+c.Intn(26))) + "/b"
			}
		},
		func(v *apiextensionsv1.JSON, c randfill.Continue) { v.Raw = []byte(`{"a":1}`) },
		func(v *runtime.RawExtension, c randfill.Continue) { v.Raw = []byte(`{"a":1}`) },
		func(v *[]metav1.ManagedFieldsEntry, c randfill.Continue) { *v = nil },
	)
}

// TestCreated compares the result with that of the library for random objects of every kind.
func TestCreated(t *testing.T) {
	m := New(nil)
	fill := filler()
	compared, planned, letter := 0, 0, 0
	for _, res := range catalog.Resources() {
		if res.Review {
			continue
		}
		f, err := m.For(res, "")
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			obj := res.New()
			fill.Fill(obj)
			plainNames(reflect.ValueOf(obj).Elem(), &letter)
			obj.SetManagedFields(nil)
			obj.GetObjectKind().SetGroupVersionKind(res.GVK())
			empty := res.New()
			empty.GetObjectKind().SetGroupVersionKind(res.GVK())
			want, err := f.Update(empty, obj.DeepCopyObject(), "m")
			if err != nil {
				continue // clients could not send this object
			}
			got, err := m.Created(res, obj, "m")
			if err != nil {
				t.Fatal(err)
			}
			if w := want.(metav1.Object).GetManagedFields(); !SameButTimes(got.GetManagedFields(), w) {
				data, _ := json.Marshal(obj)
				t.Fatalf("%s %s: %s\nnot %s", data, res.GVK(), got.GetManagedFields()[0].FieldsV1, w[0].FieldsV1)
			}
			compared++
			if p, err := m.plan(res, obj); err != nil {
				t.Fatal(err)
			} else if _, err := m.writers.fields(p, reflect.ValueOf(got).Elem()); err == nil {
				planned++
			}
		}
	}
	t.Logf("compared %d, of which %d had a plan", compared, planned)
}

// plainNames sets strings of named types, such as protocols, to values that need no escaping in
// JSON.
func plainNames(v reflect.Value, n *int) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			plainNames(v.Elem(), n)
		}
	case reflect.Slice:
		for i := range v.Len() {
			plainNames(v.Index(i), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				plainNames(v.Field(i), n)
			}
		}
	case reflect.String:
		if v.Type() != reflect.TypeFor[string]() && v.Len() > 0 && v.CanSet() {
			*n++
			v.SetString(string(rune('A' + *n%26)))
		}
	}
}

// TestUpdated compares the result with that of the library when some fields of random objects are
// updated.
func TestUpdated(t *testing.T) {
	m := New(nil)
	fill := filler()
	letter, compared, simple := 0, 0, 0
	for _, res := range catalog.Resources() {
		if res.Review {
			continue
		}
		for view := range res.Views {
			if view != "status" {
				continue
			}
			for _, subresource := range []string{"", view} {
				f, err := m.For(res, subresource)
				if err != nil {
					t.Fatal(err)
				}
				for i := range 12 {
					live, other := res.New(), res.New()
					for _, obj := range []api.Object{live, other} {
						fill.Fill(obj)
						plainNames(reflect.ValueOf(obj).Elem(), &letter)
						obj.SetManagedFields(nil)
						obj.GetObjectKind().SetGroupVersionKind(res.GVK())
					}
					if live, err = m.Created(res, live, "first"); err != nil {
						t.Fatal(err)
					}
					obj := live.DeepCopyObject().(api.Object)
					to := reflect.ValueOf(obj).Elem()
					for j := range to.NumField() {
						if name := to.Type().Field(j).Name; name == "Status" || name == "Spec" && i%3 == 0 {
							to.Field(j).Set(reflect.ValueOf(other).Elem().Field(j))
						}
					}
					if i%4 == 0 {
						obj.SetLabels(other.GetLabels())
					}
					by := By{Resource: res, Subresource: subresource, Fields: f, Manager: "m"}
					// Once, and again with other values of the same fields.
					for range 2 {
						want, err := f.Update(live.DeepCopyObject(), obj.DeepCopyObject(), "m")
						if err != nil {
							break
						}
						before := live.DeepCopyObject()
						if lessLive, lessObj := differingParts(live, obj); lessObj != nil &&
							m.updatedSameOwner(&by, live, obj.DeepCopyObject().(api.Object), lessLive, lessObj) {
							simple++
						}
						got := m.Updated(by, live, obj).(api.Object)
						if w := want.(metav1.Object).GetManagedFields(); !SameButTimes(got.GetManagedFields(), w) {
							t.Fatalf("%s: %v\nnot %v", res.GVK(), got.GetManagedFields(), w)
						}
						if !reflect.DeepEqual(live, before) {
							t.Fatalf("%s: the old object was written to", res.GVK())
						}
						compared++
						live, obj = got, got.DeepCopyObject().(api.Object)
						changeStrings(reflect.ValueOf(obj).Elem())
					}
				}
			}
		}
	}
	t.Logf("compared %d, of which simple %d", compared, simple)
	if simple < 100 {
		t.Error("the fast path was hardly used")
	}
}

// changeStrings changes some strings in spec and status.
func changeStrings(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			changeStrings(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			switch v.Type().Field(i).Name {
			case "TypeMeta", "ObjectMeta", "Name", "Type", "Key":
			default:
				changeStrings(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if v.Index(i).Kind() != reflect.String { // not sets
				changeStrings(v.Index(i))
			}
		}
	case reflect.String:
		if v.CanSet() && rand.N(4) == 0 {
			v.SetString(v.String() + "x")
		}
	}
}
