package fieldmanager

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/internal/api"
	"hyperkube/internal/api/catalog"
)

// TestReapplied compares the result with that of the library when the same fields are applied again
// with other values, for random objects of every kind.
func TestReapplied(t *testing.T) {
	m := New(nil)
	fill := filler()
	simple, letter := 0, 0
	for _, res := range catalog.Resources() {
		if res.Review || !slices.Contains(res.Verbs, "patch") {
			continue
		}
		f, err := m.For(res, "")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			live, config := appliedOnce(t, res, f, func(obj api.Object) {
				fill.Fill(obj)
				plainNames(reflect.ValueOf(obj).Elem(), &letter)
			})
			if live == nil {
				continue
			}
			if i%2 == 0 {
				changeSome(config.Object)
			}
			manager := []string{"me", "kubectl", "other"}[rand.N(3)]
			before := live.DeepCopyObject()
			got := m.reapplied(&By{Resource: res, Manager: manager}, live, config.DeepCopy())
			if !reflect.DeepEqual(before, live) {
				t.Fatalf("%s: the live object was written to", res.GVK())
			}
			if got == nil {
				continue
			}
			want, err := f.Apply(live, config, manager, false)
			if err != nil {
				t.Fatalf("%s: the library refuses: %v", res.GVK(), err)
			}
			w := want.(api.Object)
			if !SameButTimes(got.GetManagedFields(), w.GetManagedFields()) {
				t.Fatalf("%s: managed fields %v, want %v", res.GVK(), got.GetManagedFields(), w.GetManagedFields())
			}
			for i, e := range w.GetManagedFields() {
				if e.Time.Unix()-got.GetManagedFields()[i].Time.Unix() > 60 {
					t.Errorf("%s: times %v, want %v", res.GVK(), got.GetManagedFields(), w.GetManagedFields())
				}
			}
			got.SetManagedFields(nil)
			w.SetManagedFields(nil)
			if g, w := mustJSON(t, got), mustJSON(t, w); g != w {
				t.Fatalf("%s:\n%s\nwant\n%s", res.GVK(), g, w)
			}
			simple++
		}
	}
	if simple < 200 {
		t.Errorf("the fast path was used only %d times", simple)
	}
}

func mustJSON(t *testing.T, obj any) string {
	t.Helper()
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// appliedOnce returns a random object to which "me" has applied some fields, and these fields. It
// returns nil if clients could not apply the random object.
func appliedOnce(t *testing.T, res *api.Resource, f *Manager, fill func(api.Object)) (api.Object, *unstructured.Unstructured) {
	t.Helper()
	empty := func() api.Object {
		obj := res.New()
		obj.GetObjectKind().SetGroupVersionKind(res.GVK())
		return obj
	}
	filled := empty()
	fill(filled)
	filled.SetManagedFields(nil)
	filled.GetObjectKind().SetGroupVersionKind(res.GVK())
	// As decoded from JSON, without the null of an empty JSONSchemaPropsOrArray.
	first := empty()
	if err := json.Unmarshal([]byte(mustJSON(t, filled)), first); err != nil {
		t.Fatal(err)
	}
	other, err := f.Update(empty(), first.DeepCopyObject(), "other")
	if err != nil {
		return nil, nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(first)
	if err != nil {
		t.Fatal(err)
	}
	delete(content, "status")
	meta := content["metadata"].(map[string]any)
	delete(meta, "managedFields")
	delete(meta, "creationTimestamp")
	for name := range content {
		if name != "metadata" && name != "kind" && name != "apiVersion" && rand.N(5) == 0 {
			delete(content, name)
		}
	}
	config := &unstructured.Unstructured{Object: content}
	manager := []string{"me", "kubectl"}[rand.N(2)]
	live := other
	if rand.N(3) == 0 {
		live = empty() // no other manager owns fields
	}
	out, err := f.Apply(live, config.DeepCopy(), manager, true)
	if err != nil {
		return nil, nil
	}
	obj, ok := out.(api.Object)
	if !ok {
		return nil, nil
	}
	now := metav1.Unix(1, 0)
	entries := obj.GetManagedFields()
	for i := range entries {
		entries[i].Time = &now
	}
	obj.SetManagedFields(entries)
	return obj, config
}

// changeSome changes the values of some fields.
func changeSome(v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			if _, ok := child.(string); ok && name != "kind" && name != "apiVersion" && rand.N(8) == 0 {
				v[name] = "changed"
				continue
			}
			if n, ok := child.(int64); ok && rand.N(8) == 0 {
				v[name] = n + 1
				continue
			}
			changeSome(child)
		}
	case []any:
		for _, child := range v {
			changeSome(child)
		}
	}
}

// TestInvalidConfiguration checks that an invalid configuration is rejected with the library's
// message, which contains the version and kind.
func TestInvalidConfiguration(t *testing.T) {
	for _, res := range catalog.Resources() {
		if res.GVK() != (schema.GroupVersionKind{Version: "v1", Kind: "Secret"}) {
			continue
		}
		f, err := New(nil).For(res, "")
		if err != nil {
			t.Fatal(err)
		}
		config := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret",
			"metadata": map[string]any{"name": "s", "namespace": "n"}, "data": map[string]any{"k": "in clear"},
		}}
		live := res.New()
		live.GetObjectKind().SetGroupVersionKind(res.GVK())
		_, err = f.Apply(live, config, "me", false)
		want := "failed to convert new object (n/s; /v1, Kind=Secret) to proper version: " +
			"unable to convert unstructured object to /v1, Kind=Secret: error decoding from json: illegal base64 data at input byte 2"
		if err == nil || err.Error() != want {
			t.Errorf("%v\nwant\n%s", err, want)
		}
		return
	}
	t.Fatal("there are no Secrets")
}
