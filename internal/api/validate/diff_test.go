package validate

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestDiff(t *testing.T) {
	a, b := corev1.PodSpec{Hostname: "a"}, corev1.PodSpec{Hostname: "b"}
	if got := Diff(&a, &a); got != "" {
		t.Errorf("of the same: %q", got)
	}
	got := Diff(&a, &b)
	for _, line := range []string{"@@ -", "\n  \"ImagePullSecrets\": null,\n", "\n- \"Hostname\": \"a\",\n", "\n+ \"Hostname\": \"b\",\n"} {
		if !strings.Contains(got, line) {
			t.Errorf("%q is not in\n%s", line, got)
		}
	}
}

func TestUntagged(t *testing.T) {
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"nothing":        {(*corev1.ContainerPort)(nil), `null`},
		"no list":        {[]corev1.ContainerPort(nil), `null`},
		"an empty list":  {[]corev1.ContainerPort{}, `[]`},
		"a struct":       {corev1.ServicePort{Name: "a<b", Port: 1}, `{"Name":"a\u003cb","Protocol":"","AppProtocol":null,"Port":1,"TargetPort":0,"NodePort":0}`},
		"a map":          {map[string]corev1.LocalObjectReference{"b": {Name: "x"}, "a": {}}, `{"a":{"Name":""},"b":{"Name":"x"}}`},
		"a quantity":     {&corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}}, `{"Limits":{"cpu":"1"},"Requests":null,"Claims":null}`},
		"embedded":       {corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "x"}}, `{"Name":"x","Optional":null}`},
		"metadata":       {corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "x"}, ObjectMeta: metav1.ObjectMeta{Name: "x"}}, `{"name":"x","Immutable":null,"Data":null,"BinaryData":null}`},
		"empty metadata": {corev1.ConfigMap{}, `{"Immutable":null,"Data":null,"BinaryData":null}`},
		"selector":       {corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}}, `{"LabelSelector":{"matchLabels":{"a":"b"}},"Namespaces":null,"TopologyKey":"","NamespaceSelector":null,"MatchLabelKeys":null,"MismatchLabelKeys":null}`},
	} {
		got, err := json.Marshal(Untagged{test.value})
		if err != nil || string(got) != test.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, test.want)
		}
	}
	errs := UntaggedValues(field.ErrorList{
		field.Invalid(field.NewPath("a"), corev1.LocalObjectReference{Name: "x"}, ""),
		field.Invalid(field.NewPath("b"), "x", ""),
		field.Invalid(field.NewPath("c"), corev1.LocalObjectReference{Name: "x"}, "").MarkCoveredByDeclarative(),
		field.Required(field.NewPath("d"), ""),
	})
	want := `[a: Invalid value: {"Name":"x"}, b: Invalid value: "x", c: Invalid value: {"name":"x"}, d: Required value]`
	if got := errs.ToAggregate().Error(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
