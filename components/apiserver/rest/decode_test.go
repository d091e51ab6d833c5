package rest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"hyperkube/components/apiserver/wire"
)

// definition returns a protobuf definition with a schema that is nested n times.
func definition(t testing.TB, n int) []byte {
	t.Helper()
	schema := &apiextensionsv1.JSONSchemaProps{}
	for range n {
		schema = &apiextensionsv1.JSONSchemaProps{Not: schema}
	}
	raw, err := (&apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema}}},
	}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	data, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}, Raw: raw}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte(wire.Magic), data...)
}

// TestDecodeDeep checks that decoding a deeply nested recursive type does not overflow the stack.
func TestDecodeDeep(t *testing.T) {
	if _, err := decodeProto(definition(t, 100), &apiextensionsv1.CustomResourceDefinition{}); err != nil {
		t.Errorf("a hundred levels: %v", err)
	}
	_, err := decodeProto(definition(t, maxDepth+1), &apiextensionsv1.CustomResourceDefinition{})
	if err == nil || !strings.Contains(err.Error(), "max depth") {
		t.Errorf("too many levels: %v", err)
	}
}

// FuzzDecode decodes arbitrary bodies.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":[{"name":"c"}]},"spec":{}}`))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("a: &a {b: 1}\n<<: *a\n? [x]\n: y\n"))
	f.Add([]byte(strings.Repeat(`{"not":`, 100)))
	f.Add(definition(f, 5))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	raw, err := pod.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	data, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: raw}).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append([]byte(wire.Magic), data...))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, into := range []func() runtime.Object{
			func() runtime.Object { return &corev1.Pod{} },
			func() runtime.Object { return &apiextensionsv1.CustomResourceDefinition{} },
			func() runtime.Object { return &unstructured.Unstructured{} },
		} {
			_, _ = decodeProto(data, into())
			for _, strict := range []strictness{metav1.FieldValidationStrict, metav1.FieldValidationIgnore} {
				_, _, _ = decodeJSON(data, into(), strict)
				_, _, _ = decodeYAML(data, into(), strict)
			}
		}
	})
}
