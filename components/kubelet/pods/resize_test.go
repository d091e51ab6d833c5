package pods

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// TestResizeOrder holds that room goes to those that go first, whoever asks.
func TestResizeOrder(t *testing.T) {
	h := &Host{Allocatable: func() v1.ResourceList { return v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")} }}
	m := NewManager(h)
	now := time.Now()
	cpu := func(n string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(n)}}
	}
	add := func(name, has, wants string, priority int32, since time.Duration) *v1.Pod {
		p := &v1.Pod{}
		p.UID, p.Spec.Priority = types.UID(name), &priority
		p.Spec.Containers = []v1.Container{{Name: "c", Resources: cpu(wants)}}
		w := &worker{uid: p.UID, pod: p}
		if has != wants {
			w.actuated = map[string]v1.ResourceRequirements{"c": cpu(has)}
			w.resize = &resizeState{kind: v1.PodResizePending, reason: v1.PodReasonDeferred, since: now.Add(since)}
		}
		m.workers[p.UID] = w
		return p
	}
	add("busy", "1", "1", 0, 0)
	late := add("late", "500m", "1500m", 0, 2*time.Second)
	early := add("early", "500m", "1500m", 0, time.Second)
	high := add("high", "500m", "1", 100, 3*time.Second)
	huge := add("huge", "500m", "4", 1000, 0)
	// 3 of 4 are taken. The huge one does not fit and holds nobody up; the high
	// one takes 500m, and what is left is enough for none of the others.
	for pod, want := range map[*v1.Pod]string{huge: v1.PodReasonDeferred, high: "", early: v1.PodReasonDeferred, late: v1.PodReasonDeferred} {
		if reason, message := m.fits(pod); reason != want {
			t.Errorf("%s: %q, %s; want %q", pod.UID, reason, message, want)
		}
	}
	delete(m.workers, "busy")
	for pod, want := range map[*v1.Pod]string{high: "", early: "", late: v1.PodReasonDeferred} {
		if reason, message := m.fits(pod); reason != want {
			t.Errorf("with more room, %s: %q, %s; want %q", pod.UID, reason, message, want)
		}
	}
	if reason, message := m.fits(add("infeasible", "1", "5", 0, 0)); reason != v1.PodReasonInfeasible || !strings.Contains(message, "requested: 5000, capacity: 4000") {
		t.Errorf("%q, %s", reason, message)
	}
}
