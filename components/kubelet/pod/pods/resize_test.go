package pods

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/pod/podutil"
)

// TestRuntimeCallsOfResize checks that the runtime gets the pod's new resources before its
// containers are resized, that it may reject them, and that a runtime without the call is
// supported.
func TestRuntimeCallsOfResize(t *testing.T) {
	for name, c := range map[string]struct {
		box     string
		restart bool
		err     error
		calls   []string
		refused bool
	}{
		"sandbox and container":                      {box: "box", calls: []string{"UpdatePodSandboxResources box", "UpdateContainerResources c"}},
		"refused":                                    {box: "box", err: errors.New("no room in the machine"), calls: []string{"UpdatePodSandboxResources box"}, refused: true},
		"unsupported by the runtime":                 {box: "box", err: status.Error(codes.Unimplemented, "unknown method"), calls: []string{"UpdatePodSandboxResources box", "UpdateContainerResources c"}},
		"unsupported by the runtime, with a sandbox": {box: "box", err: status.Error(codes.Unknown, "not implemented yet"), calls: []string{"UpdatePodSandboxResources box", "UpdateContainerResources c"}},
		"no sandbox":                                 {calls: []string{"UpdateContainerResources c"}},
		// The runtime gets them after the container, which uses more until then, has exited.
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
			req := &podmachine.ResizeRequest{Pod: p, Sandbox: c.box, Granted: true, Containers: []podmachine.ContainerResize{{ID: "c", Name: "main", Restart: c.restart}}}
			state := h.resizer.resize(t.Context(), req, func() {})
			if got := state.Reason == v1.PodReasonError && strings.Contains(state.Message, "no room in the machine"); got != c.refused || state.Kind != v1.PodResizeInProgress {
				t.Errorf("result %+v", state)
			}
			if got := runtime.Calls(); !slices.Equal(got, c.calls) {
				t.Errorf("calls %v, want %v", got, c.calls)
			}
			if c.err != nil || c.box == "" || c.restart {
				return
			}
			if got := runtime.Resized("box"); got.GetResources().GetMemoryLimitInBytes() != 64<<20 || got.GetOverhead().GetMemoryLimitInBytes() != 8<<20 {
				t.Errorf("got %v", got)
			}
		})
	}
}

// TestResizeOrder checks that deferred resizes get free resources in their order, regardless of
// which pod is checked.
func TestResizeOrder(t *testing.T) {
	h := newHost(Config{Log: slog.New(slog.DiscardHandler), Node: Node{Allocatable: func() v1.ResourceList { return v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")} }}})
	now := time.Now()
	cpu := func(n string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(n)}}
	}
	add := func(name, has, wants string, priority int32, since time.Duration) *v1.Pod {
		p := &v1.Pod{}
		p.UID, p.Spec.Priority = types.UID(name), &priority
		p.Spec.Containers = []v1.Container{{Name: "c", Resources: cpu(wants)}}
		w := newWorker(h, p)
		if has != wants {
			w.machine.Resize.Actuated = map[string]v1.ResourceRequirements{"c": cpu(has)}
			w.machine.Resize.State = &podmachine.ResizeState{Kind: v1.PodResizePending, Reason: v1.PodReasonDeferred, Since: now.Add(since)}
		}
		h.Registry.workers[p.UID] = w
		return p
	}
	add("busy", "1", "1", 0, 0)
	late := add("late", "500m", "1500m", 0, 2*time.Second)
	early := add("early", "500m", "1500m", 0, time.Second)
	high := add("high", "500m", "1", 100, 3*time.Second)
	huge := add("huge", "500m", "4", 1000, 0)
	// 3 of 4 CPUs are used. "huge" does not fit and does not block others; "high" gets 500m, and
	// the rest is too small for the others.
	for pod, want := range map[*v1.Pod]string{huge: v1.PodReasonDeferred, high: "", early: v1.PodReasonDeferred, late: v1.PodReasonDeferred} {
		if reason, message := h.resizer.checkFit(pod); reason != want {
			t.Errorf("%s: %q, %s; want %q", pod.UID, reason, message, want)
		}
	}
	delete(h.Registry.workers, "busy")
	for pod, want := range map[*v1.Pod]string{high: "", early: "", late: v1.PodReasonDeferred} {
		if reason, message := h.resizer.checkFit(pod); reason != want {
			t.Errorf("with more room, %s: %q, %s; want %q", pod.UID, reason, message, want)
		}
	}
	if reason, message := h.resizer.checkFit(add("more than there is", "1", "5", 0, 0)); reason != v1.PodReasonDeferred || message != "Node didn't have enough resource: cpu, requested: 5000, used: 2500, capacity: 4000" {
		t.Errorf("%q, %s", reason, message)
	}
	// The resources of a deferred resize are not reserved: a new pod may use them.
	for _, o := range h.Registry.OtherPods(huge.UID) {
		want := map[types.UID]string{"high": "500m", "early": "500m", "late": "500m", "more than there is": "1"}[o.UID]
		if got := o.Spec.Containers[0].Resources.Requests.Cpu().String(); got != want {
			t.Errorf("%s has %s, not %s", o.UID, got, want)
		}
	}
}

// TestResizeBesideThoseThatEnd checks that terminating pods do not get more resources, and that
// force-deleted pods do not count.
func TestResizeBesideThoseThatEnd(t *testing.T) {
	h := newHost(Config{Log: slog.New(slog.DiscardHandler), Node: Node{Allocatable: func() v1.ResourceList { return v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")} }}})
	cpu := func(n string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(n)}}
	}
	add := func(name, has, wants string) *worker {
		p := &v1.Pod{}
		p.UID, p.Spec.Containers = types.UID(name), []v1.Container{{Name: "c", Resources: cpu(wants)}}
		w := newWorker(h, p)
		if has != wants {
			w.machine.Resize.Actuated = map[string]v1.ResourceRequirements{"c": cpu(has)}
			w.machine.Resize.State = &podmachine.ResizeState{Kind: v1.PodResizePending, Reason: v1.PodReasonDeferred}
		}
		h.Registry.workers[p.UID] = w
		return w
	}
	first, second := add("first", "1", "3"), add("second", "1", "3")
	second.machine.Resize.State.Since = time.Now()
	want := func(when, reason string) {
		t.Helper()
		if got, message := h.resizer.checkFit(second.pod()); got != reason {
			t.Errorf("%s: %q, %s", when, got, message)
		}
	}
	want("with a resize of higher priority", v1.PodReasonDeferred)
	first.machine.Stage = podmachine.Terminating
	want("beside one that ends", "")
	third := add("third", "2", "2")
	want("with the room taken", v1.PodReasonDeferred)
	third.machine.Removed = true
	want("with the room of one that was deleted by force", "")
}

// TestResizeOfSwap checks that a memory request that determines the swap limit cannot be changed
// while the container runs.
func TestResizeOfSwap(t *testing.T) {
	plenty := v1.ResourceList{v1.ResourceMemory: resource.MustParse("8Gi")}
	memory := func(requests, limits string) v1.ResourceRequirements {
		r := v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse(requests)}}
		if limits != "" {
			r.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(limits)}
		}
		return r
	}
	again := []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
	of := func(bytes int64) func() int64 { return func() int64 { return bytes } }
	for name, c := range map[string]struct {
		swap       func() int64
		limited    bool
		has, wants v1.ResourceRequirements
		edit       func(*v1.Pod)
		refused    bool
	}{
		"limited swap":           {swap: of(1 << 30), limited: true, has: memory("1Gi", ""), wants: memory("500Mi", ""), refused: true},
		"no swap":                {swap: of(0), limited: true, has: memory("1Gi", ""), wants: memory("500Mi", ""), refused: true},
		"swap disabled for pods": {swap: of(1 << 30), has: memory("1Gi", ""), wants: memory("500Mi", "")},
		"no kernel support":      {limited: true, has: memory("1Gi", ""), wants: memory("500Mi", "")},
		"only its limit changes": {swap: of(1 << 30), limited: true, has: memory("1Gi", "2Gi"), wants: memory("1Gi", "3Gi")},
		"first limit":            {swap: of(1 << 30), limited: true, has: memory("1Gi", "1Gi"), wants: memory("500Mi", "1Gi"), refused: true},
		"container restart":      {swap: of(1 << 30), limited: true, has: memory("1Gi", ""), wants: memory("500Mi", ""), edit: func(p *v1.Pod) { p.Spec.Containers[0].ResizePolicy = again }},
		"critical":               {swap: of(1 << 30), limited: true, has: memory("1Gi", ""), wants: memory("500Mi", ""), edit: func(p *v1.Pod) { p.Spec.Priority = new(int32(podutil.SystemCritical)) }},
	} {
		h := newHost(Config{Log: slog.New(slog.DiscardHandler), Node: Node{Allocatable: func() v1.ResourceList { return plenty }}, Metrics: telemetry.New(), Limits: Limits{Swap: c.swap, LimitedSwap: c.limited}})
		p := newPod("a", func(p *v1.Pod) {
			p.Spec.Containers[0].Resources = c.wants
			if c.edit != nil {
				c.edit(p)
			}
		})
		w := newWorker(h, p)
		w.machine.Resize.Actuated[p.Spec.Containers[0].Name] = c.has
		h.Registry.add(w)
		reason, message := h.resizer.checkFit(p)
		if (reason == v1.PodReasonInfeasible) != c.refused || c.refused && message != "In-place resize of containers with swap is not supported." {
			t.Errorf("%s: %q, %s", name, reason, message)
		}
	}
}

// TestRoomForResize checks that other pods are preempted before a resize is deferred.
func TestRoomForResize(t *testing.T) {
	asks := func(cpu string) *v1.Pod {
		return newPod("a", func(p *v1.Pod) {
			list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("1Mi")}
			p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: list, Limits: list}
		})
	}
	full := "Node didn't have enough resource: cpu, requested: 8000, used: 0, capacity: 4000"
	static := "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""
	for name, c := range map[string]struct {
		static bool
		why    string
		freed  bool
		asked  bool
		want   podmachine.ResizeState
	}{
		"preemption":    {freed: true, asked: true, want: podmachine.ResizeState{Kind: v1.PodResizeInProgress}},
		"no preemption": {why: "none found", asked: true, want: podmachine.ResizeState{Kind: v1.PodResizePending, Reason: v1.PodReasonDeferred, Message: "none found"}},
		"infeasible":    {static: true, want: podmachine.ResizeState{Kind: v1.PodResizePending, Reason: v1.PodReasonInfeasible, Message: static}},
	} {
		asked := false
		ctx, cancel := context.WithCancel(t.Context())
		h := newBenchWith(t, crifake.New(), func(cfg *Config) {
			cfg.Node.Allocatable = func() v1.ResourceList { return v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")} }
			cfg.Limits.StaticCPUs = c.static
			cfg.Admitter = &fakeAdmitter{preempt: func(room context.Context, message string) (bool, string) {
				asked = message == full
				if cancel(); room.Err() == nil {
					t.Errorf("%s: waits for other pods although the pod is terminating", name)
				}
				return c.freed, c.why
			}}
		}).host
		got := h.resizer.resize(ctx, &podmachine.ResizeRequest{Pod: asks("8")}, func() {})
		cancel()
		if got != c.want || asked != c.asked {
			t.Errorf("%s: %+v, preempted %t", name, got, asked)
		}
	}
}
