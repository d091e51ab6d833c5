package validate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDiff(t *testing.T) {
	spread := func(app string) []corev1.TopologySpreadConstraint {
		return []corev1.TopologySpreadConstraint{{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
	}
	for name, test := range map[string]struct {
		old, now       corev1.PodSpec
		has, hasNot    []string
		nothingChanged bool
	}{
		"a field": {
			corev1.PodSpec{Hostname: "a"}, corev1.PodSpec{Hostname: "v1.PodSpec{"},
			[]string{"core.PodSpec{", `"v1.PodSpec{"`}, []string{` v1.PodSpec{`}, false,
		},
		"what a field holds": {
			corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Command: []string{"a"}}}},
			corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Command: []string{"b"}}}},
			[]string{"core.PodSpec{", "[]core.Container{"}, []string{"v1.Container"}, false,
		},
		"a selector": {
			corev1.PodSpec{TopologySpreadConstraints: spread("a")}, corev1.PodSpec{TopologySpreadConstraints: spread("b")},
			[]string{"[]core.TopologySpreadConstraint{", "&v1.LabelSelector{"}, []string{"core.LabelSelector"}, false,
		},
		"nothing": {corev1.PodSpec{Hostname: "a"}, corev1.PodSpec{Hostname: "a"}, nil, nil, true},
	} {
		// go-cmp has two ways to write a space.
		got := strings.ReplaceAll(Diff(&test.old, &test.now), "\u00a0", " ")
		if (got == "") != test.nothingChanged {
			t.Errorf("%s: %q", name, got)
		}
		for _, text := range test.has {
			if !strings.Contains(got, text) {
				t.Errorf("%s: %s is not in\n%s", name, text, got)
			}
		}
		for _, text := range test.hasNot {
			if strings.Contains(got, text) {
				t.Errorf("%s: %s is in\n%s", name, text, got)
			}
		}
	}
}
