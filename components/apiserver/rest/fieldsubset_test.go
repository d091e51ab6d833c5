package rest

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
)

// TestStrategic compares the result with that of patching the complete object.
func TestStrategic(t *testing.T) {
	pod := func() *corev1.Pod {
		return &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", Labels: map[string]string{"x": "y"}, Finalizers: []string{"f/a"}},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")},
				}}},
				Tolerations: []corev1.Toleration{{Key: "k"}},
			},
			Status: corev1.PodStatus{Phase: "Running", Conditions: []corev1.PodCondition{{Type: "Ready", Status: "True"}, {Type: "Other"}}},
		}
	}
	for _, patch := range []string{
		`{}`,
		`{"status":{"message":"m"}}`,
		`{"status":{"conditions":[{"type":"Ready","status":"False"}],"$setElementOrder/conditions":[{"type":"Other"},{"type":"Ready"}]}}`,
		`{"status":null}`,
		`{"metadata":{"labels":{"x":null,"z":"1"}},"status":{"phase":"Failed"}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["f/a"]}}`,
		`{"spec":{"containers":[{"name":"c","image":"i"}]}}`,
		`{"spec":{"tolerations":null}}`,
		`{"kind":"Pod","apiVersion":"v1","status":{"reason":"r"}}`,
		`{"$patch":"replace","metadata":{"name":"a"}}`,
		`{"nothing":1,"status":{"reason":"r"}}`,
	} {
		current := pod()
		body := map[string]any{}
		if err := json.Unmarshal([]byte(patch), &body); err != nil {
			t.Fatal(err)
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(current)
		if err != nil {
			t.Fatal(err)
		}
		merged, err := strategicpatch.StrategicMergeMapPatch(content, body, current)
		if err != nil {
			t.Fatalf("%s: %v", patch, err)
		}
		want := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(merged, want); err != nil {
			t.Fatalf("%s: %v", patch, err)
		}
		p := &patcher{
			call:   &call{res: &registry.Resource{Resource: &api.Resource{}}},
			body:   []byte(patch),
			strict: metav1.FieldValidationIgnore,
			kind:   schema.GroupVersionKind{Version: "v1", Kind: "Pod"},
			empty:  func() api.Object { return &corev1.Pod{} },
		}
		got, err := p.strategic(current)
		if err != nil {
			t.Fatalf("%s: %v", patch, err)
		}
		got.GetObjectKind().SetGroupVersionKind(p.kind)
		want.GetObjectKind().SetGroupVersionKind(p.kind)
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		if string(a) != string(b) {
			t.Errorf("%s:\n%s\nnot %s", patch, a, b)
		}
		before, _ := json.Marshal(pod())
		if after, _ := json.Marshal(current); string(before) != string(after) {
			t.Errorf("%s: modified its argument: %s", patch, after)
		}
	}
}
