package scheduler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

func TestEvents(t *testing.T) {
	ending := func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }
	for _, c := range []struct {
		name     string
		old, now *corev1.Pod
		want     framework.Event
	}{
		{"nothing", pod("p", requests("2")), pod("p", requests("2"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }), 0},
		{"resized down", pod("p", requests("2")), pod("p", requests("1")), framework.PodScaledDown},
		{"resized up", pod("p", requests("1")), pod("p", requests("2")), 0},
		{"labelled", pod("p"), pod("p", labelled(map[string]string{"a": "b"})), framework.PodLabelsChanged},
		{"ending", pod("p"), pod("p", ending), framework.PodLabelsChanged},
	} {
		if got := podEvent(state.NewPod(c.old), state.NewPod(c.now)); got != c.want {
			t.Errorf("%s: %b, want %b", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		name   string
		change func(*corev1.Node)
		want   framework.Event
	}{
		{"heartbeat", func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}} }, 0},
		{"untainted", func(n *corev1.Node) { n.Spec.Taints = nil }, framework.NodeTaintsChanged},
		{"cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }, framework.NodeTaintsChanged},
		{"labelled", zone("z"), framework.NodeLabelsChanged},
		{"grown", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("8") }, framework.NodeAllocatableChanged},
	} {
		s := state.New()
		s.SetNode(node("a", tainted))
		if got := nodeEvent(s.Node("a"), node("a", tainted, c.change)); got != c.want {
			t.Errorf("%s: %b, want %b", c.name, got, c.want)
		}
	}
	if nodeEvent(nil, node("a")) != framework.NodeAdded {
		t.Error("a new node is no event")
	}
	// A pod without a node that changes is tried again.
	for name, change := range map[string]func(*corev1.Pod){
		"tolerates": func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: "Exists"}} },
		"resized":   requests("1"),
		"labelled":  labelled(map[string]string{"a": "b"}),
	} {
		if !differ(pod("p", requests("2")), pod("p", requests("2"), change)) {
			t.Errorf("%s: not tried again", name)
		}
	}
	if differ(pod("p"), pod("p", func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled}} })) {
		t.Error("tried again for what the scheduler itself wrote")
	}
}
