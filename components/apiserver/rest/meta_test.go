package rest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCheckNamespace(t *testing.T) {
	for _, tc := range []struct {
		request, given, want string
		refused              bool
	}{
		{"a", "a", "a", false},
		{"a", "", "a", false},
		{"a", "b", "b", true},
		{"", "", "", false},
		// Cluster-scoped objects lose their namespace.
		{"", "b", "", false},
	} {
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: tc.given}}
		err := (&call{namespace: tc.request}).checkNamespace(obj)
		if (err != nil) != tc.refused || obj.Namespace != tc.want {
			t.Errorf("%q in a request to %q: %q, %v", tc.given, tc.request, obj.Namespace, err)
		}
	}
}
