package nodettl

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/controltest"
)

func TestSteps(t *testing.T) {
	c := &Controller{}
	// The sizes are applied in this order: when the cluster shrinks, the steps change at other
	// sizes.
	for _, tc := range []struct{ size, want int }{
		{1, 0}, {100, 0}, {101, 15}, {95, 15}, {89, 0}, {600, 30}, {2500, 300}, {1900, 300}, {1700, 60}, {0, 0},
	} {
		for c.count < tc.size {
			c.addNodes(1)
		}
		for c.count > tc.size {
			c.addNodes(-1)
		}
		if got := c.seconds(); got != tc.want {
			t.Errorf("%d nodes: %d s, want %d", tc.size, got, tc.want)
		}
	}
}

func TestAnnotation(t *testing.T) {
	for _, tc := range []struct {
		is     string
		writes string
	}{{"", "[patch nodes n]"}, {"x", "[patch nodes n]"}, {"15", "[patch nodes n]"}, {"0", "[]"}} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		if tc.is != "" {
			n.Annotations = map[string]string{corev1.ObjectTTLAnnotationKey: tc.is}
		}
		f := controltest.New(t, n)
		c, err := New(f.Env)
		if err != nil {
			t.Fatal(err)
		}
		if err := controltest.Sync(t, c.Loop, "n"); err != nil {
			t.Fatal(err)
		}
		if w := fmt.Sprint(f.Writes()); w != tc.writes {
			t.Errorf("%q: writes %s, want %s", tc.is, w, tc.writes)
		}
		after, err := f.Kube.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil || after.Annotations[corev1.ObjectTTLAnnotationKey] != "0" {
			t.Errorf("%q: annotations %v, %v", tc.is, after.Annotations, err)
		}
	}
}
