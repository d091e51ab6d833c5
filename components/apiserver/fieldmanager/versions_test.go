package fieldmanager

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"hyperkube/internal/api"
	"hyperkube/internal/api/catalog"
)

// TestVersions checks that field managers that write an object in different versions detect each
// other's fields.
func TestVersions(t *testing.T) {
	all := catalog.Resources()
	m := New(func() []*api.Resource { return all })
	of := func(version string) *api.Resource {
		for _, res := range all {
			if res.Plural == "horizontalpodautoscalers" && res.Version == version {
				return res
			}
		}
		t.Fatalf("there is no autoscaling/%s", version)
		return nil
	}
	apply := func(res *api.Resource, live api.Object, manager string, force bool, most int64) (api.Object, error) {
		t.Helper()
		f, err := m.For(res, "")
		if err != nil {
			t.Fatal(err)
		}
		live.GetObjectKind().SetGroupVersionKind(res.GVK())
		config := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": res.GroupVersion().String(), "kind": res.Kind,
			"metadata": map[string]any{"name": "a"},
			"spec":     map[string]any{"maxReplicas": most, "scaleTargetRef": map[string]any{"kind": "Deployment", "name": "d"}},
		}}
		out, err := m.Applied(By{Resource: res, Fields: f, Manager: manager}, live, config, force)
		if err != nil {
			return nil, err
		}
		return out.(api.Object), nil
	}
	v1, v2 := of("v1"), of("v2")
	made, err := apply(v1, &autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, "first", false, 3)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := v1.StoredAs.ToStored(made)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = apply(v2, stored, "second", false, 4); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "first": .spec.maxReplicas`) {
		t.Errorf("another size in another version: %v", err)
	}
	taken, err := apply(v2, stored, "second", true, 4)
	if err != nil {
		t.Fatal(err)
	}
	owned := map[string]string{}
	for _, e := range taken.GetManagedFields() {
		owned[e.Manager+" "+e.APIVersion] = e.FieldsV1.GetRawString()
	}
	if got := owned["first autoscaling/v1"]; got != `{"f:spec":{"f:scaleTargetRef":{}}}` {
		t.Errorf("what is left to the first: %s", got)
	}
	if got := owned["second autoscaling/v2"]; !strings.Contains(got, "f:maxReplicas") {
		t.Errorf("what the second has: %s", got)
	}
	if got := taken.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MaxReplicas; got != 4 {
		t.Errorf("size: %d", got)
	}
}

// TestStatusVersions checks that the status subresource of a custom resource resets metadata in all
// versions that have this subresource, and in no other version.
func TestStatusVersions(t *testing.T) {
	res := &api.Resource{
		Group: "example.com", Version: "v1",
		Update: api.Update{ResetFields: [][]string{{"status"}}},
		Views:  map[string]api.Update{"status": {ResetFields: [][]string{{"metadata"}}}},
		Custom: &api.Custom{StatusVersions: []string{"v1", "v2"}},
	}
	m := New(nil)
	for subresource, want := range map[string][]string{"": {"v1"}, "status": {"v1", "v2"}} {
		filters, err := m.resetFields(res, subresource)
		if err != nil {
			t.Fatal(err)
		}
		if len(filters) != len(want) {
			t.Errorf("%q: %d filters", subresource, len(filters))
		}
		for _, version := range want {
			gv := schema.GroupVersion{Group: "example.com", Version: version}
			if filters[fieldpath.APIVersion(gv.String())] == nil {
				t.Errorf("%q: none of %s", subresource, version)
			}
		}
	}
}
