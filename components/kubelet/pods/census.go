package pods

import (
	"strings"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/podstate"
	"hyperkube/components/kubelet/telemetry"
)

// Census is how many pods and containers there are.
type Census struct {
	// Sandboxes are the pods that have one that is ready.
	Sandboxes int
	// Containers of the runtime by their states: created, running, exited, unknown.
	Containers map[string]int
	// Ephemeral containers of pods that are wanted.
	Ephemeral int
	// Desired are the pods that are wanted, and Active those of them that have not
	// ended: the first are from the API, the others are static.
	Desired, Active [2]int
	// Working are all pods that something is left of.
	Working map[Work]int
	// Pending are the resizes that wait, and InProgress how many are being done.
	Pending    map[Resize]int
	InProgress int
}

// Work is what is being done for a pod, in the words of metrics.
type Work struct{ Lifecycle, Config, Static string }

// Resize is one that waits: why, and the priority of its pod.
type Resize struct{ Reason, Priority string }

// Census counts.
func (m *Manager) Census() Census {
	c := Census{Containers: map[string]int{"created": 0, "running": 0, "exited": 0, "unknown": 0}, Working: map[Work]int{}, Pending: map[Resize]int{}}
	for _, lifecycle := range []string{"sync", "terminating", "terminated"} {
		for _, of := range [][2]string{{"desired", ""}, {"desired", "true"}, {"orphan", ""}, {"orphan", "true"}, {"runtime_only", "unknown"}} {
			c.Working[Work{lifecycle, of[0], of[1]}] = 0
		}
	}
	for _, w := range m.all() {
		w.mu.Lock()
		w.count(&c)
		w.mu.Unlock()
	}
	return c
}

// count adds the worker's pod. The caller holds mu.
func (w *worker) count(c *Census) {
	for i := range w.obs.Containers {
		switch w.obs.Containers[i].State {
		case podstate.Created:
			c.Containers["created"]++
		case podstate.Running:
			c.Containers["running"]++
		case podstate.Exited:
			c.Containers["exited"]++
		default:
			c.Containers["unknown"]++
		}
	}
	if s := w.obs.Sandbox(); s != nil && s.Ready {
		c.Sandboxes++
	}
	kind, work := 0, Work{Lifecycle: "sync", Config: "desired"}
	if IsStatic(w.pod) {
		kind, work.Static = 1, "true"
	}
	switch {
	case w.orphan:
		work.Config, work.Static = "runtime_only", "unknown"
	case w.gone:
		work.Config = "orphan"
	default:
		c.Ephemeral += len(w.pod.Spec.EphemeralContainers)
		c.Desired[kind]++
		if w.stage != stopped {
			c.Active[kind]++
		}
	}
	switch w.stage {
	case terminating:
		work.Lifecycle = "terminating"
	case stopped:
		work.Lifecycle = "terminated"
	}
	c.Working[work]++
	if r := w.resize; r != nil && w.stage == syncing {
		if r.kind == v1.PodResizePending {
			c.Pending[Resize{strings.ToLower(r.reason), telemetry.PriorityBucket(w.pod)}]++
		} else {
			c.InProgress++
		}
	}
}
