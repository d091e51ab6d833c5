package registry

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/api"
	"hyperkube/internal/api/catalog"
)

// TestDecodeTrimmed compares the result with that of Decode for both encodings, and checks that an
// object does not share memory with the reused buffer.
func TestDecodeTrimmed(t *testing.T) {
	var pods *api.Resource
	for _, r := range catalog.Resources() {
		if r.GVK() == corev1.SchemeGroupVersion.WithKind("Pod") {
			pods = r
		}
	}
	c := &codec{resource: pods, kind: wire.NewKind(pods.GVK())}
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{"a": name}, Finalizers: []string{"example.com/" + name},
				ManagedFields: []metav1.ManagedFieldsEntry{
					{Manager: "m", Operation: "Update", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{}}`)}}, {Manager: "n"},
				},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: name, Image: "image-" + name}}},
		}
	}
	encodings := map[string]func(*corev1.Pod) ([]byte, error){
		"protobuf": func(p *corev1.Pod) ([]byte, error) { return c.Encode(p) },
		"JSON": func(p *corev1.Pod) ([]byte, error) {
			p.SetGroupVersionKind(pods.GVK())
			return json.Marshal(p)
		},
	}
	for name, encode := range encodings {
		t.Run(name, func(t *testing.T) {
			var trimmed []*corev1.Pod
			var whole []*corev1.Pod
			for _, name := range []string{"first", "other"} {
				data, err := encode(pod(name))
				if err != nil {
					t.Fatal(err)
				}
				got, err := c.DecodeTrimmed(data, 7)
				if err != nil {
					t.Fatal(err)
				}
				want, err := c.Decode(data, 7)
				if err != nil {
					t.Fatal(err)
				}
				trimmed, whole = append(trimmed, got.(*corev1.Pod)), append(whole, want.(*corev1.Pod))
			}
			for i, want := range whole {
				if len(want.ManagedFields) != 2 {
					t.Fatalf("managed fields %v", want.ManagedFields)
				}
				want.ManagedFields = nil
				if got := trimmed[i]; !apiequality.Semantic.DeepEqual(got, want) {
					t.Errorf("%+v\nnot %+v", got, want)
				}
			}
		})
	}
}
