package pods

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri/crifake"
)

// TestRuntimeToldOfResize: a runtime hears what the pod as a whole gets before its
// containers get it, and may refuse; one that does not want to know is no hindrance.
func TestRuntimeToldOfResize(t *testing.T) {
	list := func(restart bool) []resizing {
		return []resizing{{id: "c", name: "main", want: &runtimeapi.LinuxContainerResources{}, restart: restart}}
	}
	for name, c := range map[string]struct {
		box     string
		restart bool
		err     error
		calls   []string
		refused bool
	}{
		"told":                {box: "box", calls: []string{"UpdatePodSandboxResources box", "UpdateContainerResources c"}},
		"refused":             {box: "box", err: errors.New("no room in the machine"), calls: []string{"UpdatePodSandboxResources box"}, refused: true},
		"of no interest":      {box: "box", err: status.Error(codes.Unimplemented, "unknown method"), calls: []string{"UpdatePodSandboxResources box", "UpdateContainerResources c"}},
		"of no interest, too": {box: "box", err: status.Error(codes.Unknown, "not implemented yet"), calls: []string{"UpdatePodSandboxResources box", "UpdateContainerResources c"}},
		"no sandbox":          {calls: []string{"UpdateContainerResources c"}},
		// It is told once the container has ended, which has more until then.
		"restart": {box: "box", restart: true},
	} {
		t.Run(name, func(t *testing.T) {
			runtime := crifake.New()
			runtime.Fail("UpdatePodSandboxResources", c.err)
			h := newBench(t, runtime).host
			p := newPod("a", func(p *v1.Pod) {
				p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}
				p.Spec.Overhead = v1.ResourceList{v1.ResourceMemory: resource.MustParse("8Mi")}
			})
			state := h.resize(t.Context(), p, c.box, list(c.restart), true, func() {})
			if got := state.reason == v1.PodReasonError && strings.Contains(state.message, "no room in the machine"); got != c.refused || state.kind != v1.PodResizeInProgress {
				t.Errorf("it ended as %+v", state)
			}
			if got := runtime.Calls(); !slices.Equal(got, c.calls) {
				t.Errorf("calls %v, want %v", got, c.calls)
			}
			if c.err != nil || c.box == "" || c.restart {
				return
			}
			if told := runtime.Resized("box"); told.GetResources().GetMemoryLimitInBytes() != 64<<20 || told.GetOverhead().GetMemoryLimitInBytes() != 8<<20 {
				t.Errorf("told of %v", told)
			}
		})
	}
}

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
