package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestLimitRangesFromAPI checks that the API is queried only once when the informer has no
// LimitRange.
func TestLimitRangesFromAPI(t *testing.T) {
	kube := fake.NewClientset(&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "new", Name: "l"}})
	p := &limitRanger{kube: kube, apiCache: newNamespaceCache[*corev1.LimitRange]()}
	for range 2 {
		for namespace, want := range map[string]int{"new": 1, "none": 0} {
			found, err := p.listFromAPI(t.Context(), namespace)
			if err != nil || len(found) != want {
				t.Errorf("%s: %v, %v", namespace, found, err)
			}
		}
	}
	if asked := len(kube.Actions()); asked != 2 {
		t.Errorf("%d API requests", asked)
	}
}
