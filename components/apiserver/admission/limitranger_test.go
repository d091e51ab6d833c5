package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestLimitRangesAsked asks the API once where the informer knows none.
func TestLimitRangesAsked(t *testing.T) {
	kube := fake.NewClientset(&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "new", Name: "l"}})
	p := &limitRanger{kube: kube, asked: newAsked[*corev1.LimitRange]()}
	for range 2 {
		for namespace, want := range map[string]int{"new": 1, "none": 0} {
			found, err := p.ask(t.Context(), namespace)
			if err != nil || len(found) != want {
				t.Errorf("%s: %v, %v", namespace, found, err)
			}
		}
	}
	if asked := len(kube.Actions()); asked != 2 {
		t.Errorf("asked the API %d times", asked)
	}
}
