package plugins

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// TestSpreadScore: nodes in zones with fewer pods have higher scores, and nodes without a zone the
// lowest.
func TestSpreadScore(t *testing.T) {
	s := zones("a", "b", "c")
	s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "nowhere"}})
	labels := map[string]string{"app": "web"}
	for zone, n := range map[string]int{"a": 3, "b": 1, "nowhere": 0} {
		for i := range n {
			name := fmt.Sprint(zone, i)
			s.SetPod(state.NewPod(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: labels}, Spec: corev1.PodSpec{NodeName: zone},
			}), zone)
		}
	}
	p := podWith("p")
	p.Labels = labels
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
	}}
	c := &framework.Cycle{Pod: state.NewPod(p), State: s}
	out := make([]int64, 4)
	if !(PodTopologySpread{}).Score(c, []*state.Node{s.Node("a"), s.Node("b"), s.Node("c"), s.Node("nowhere")}, out) {
		t.Fatal("no opinion")
	}
	if want := []int64{0, 60, 100, 0}; !slices.Equal(out, want) {
		t.Errorf("got %v, want %v", out, want)
	}
	p.Spec.TopologySpreadConstraints = nil
	if (PodTopologySpread{}).Score(&framework.Cycle{Pod: state.NewPod(p), State: s}, []*state.Node{s.Node("a")}, out[:1]) {
		t.Error("a score for a pod without constraints")
	}
}
