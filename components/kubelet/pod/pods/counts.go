package pods

import (
	"strings"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/telemetry"
)

// Counts has the numbers of pods and containers on the node by state, for the metrics of the kubelet.
type Counts struct {
	// Sandboxes is the number of pods with a ready sandbox.
	Sandboxes int
	// Containers is the number of containers by state: created, running, exited, unknown.
	Containers map[string]int
	// Ephemeral is the number of ephemeral containers of desired pods.
	Ephemeral int
	// Desired is the number of desired pods, and Active the number of those that have not
	// terminated. The first element counts pods from the API, the second one static pods.
	Desired, Active [2]int
	// Working is the number of pods by stage and origin.
	Working map[WorkLabels]int
	// Pending is the number of pending resizes, and InProgress that of resizes in progress.
	Pending    map[ResizeLabels]int
	InProgress int
}

// WorkLabels are the metrics labels of a pod. Lifecycle is "sync", "terminating" or "terminated". Config is
// "desired", "orphan" for a pod that was removed from its source, or "runtime_only" for a pod that only the
// runtime or the disk has. Static is "true" for a static pod, "" for other pods, and "unknown" for
// runtime_only.
type WorkLabels struct{ Lifecycle, Config, Static string }

// ResizeLabels are the metrics labels of a pending resize: its reason in lowercase and the priority bucket of
// its pod.
type ResizeLabels struct{ Reason, Priority string }

// Count returns the current numbers of pods and containers. All possible container states and WorkLabels are
// present, even if their number is zero.
func (r *Registry) Count() Counts {
	c := Counts{Containers: map[string]int{"created": 0, "running": 0, "exited": 0, "unknown": 0}, Working: map[WorkLabels]int{}, Pending: map[ResizeLabels]int{}}
	for _, lifecycle := range []string{"sync", "terminating", "terminated"} {
		for _, of := range [][2]string{{"desired", ""}, {"desired", "true"}, {"orphan", ""}, {"orphan", "true"}, {"runtime_only", "unknown"}} {
			c.Working[WorkLabels{lifecycle, of[0], of[1]}] = 0
		}
	}
	for _, w := range r.all() {
		w.mu.Lock()
		w.count(&c)
		w.mu.Unlock()
	}
	return c
}

// count adds the worker's pod, its containers and its pending resize to c. The caller must hold w.mu.
func (w *worker) count(c *Counts) {
	m := w.machine
	for i := range m.Containers.Observed.Containers {
		switch m.Containers.Observed.Containers[i].State {
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
	if s := m.Containers.Observed.Sandbox(); s != nil && s.Ready {
		c.Sandboxes++
	}
	kind, work := 0, WorkLabels{Lifecycle: "sync", Config: "desired"}
	if IsStatic(m.Pod) {
		kind, work.Static = 1, "true"
	}
	switch {
	case w.orphan:
		work.Config, work.Static = "runtime_only", "unknown"
	case m.Removed:
		work.Config = "orphan"
	default:
		c.Ephemeral += len(m.Pod.Spec.EphemeralContainers)
		c.Desired[kind]++
		if m.Stage != podmachine.Stopped {
			c.Active[kind]++
		}
	}
	switch m.Stage {
	case podmachine.Terminating:
		work.Lifecycle = "terminating"
	case podmachine.Stopped:
		work.Lifecycle = "terminated"
	}
	c.Working[work]++
	if r := m.Resize.State; r != nil && m.Stage == podmachine.Syncing {
		if r.Kind == v1.PodResizePending {
			c.Pending[ResizeLabels{strings.ToLower(r.Reason), telemetry.PriorityBucket(m.Pod)}]++
		} else {
			c.InProgress++
		}
	}
}
