package podmachine

import (
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/podstate"
)

// Resize is the state of the in-place resize of a pod: how its actual resources differ from its spec, which
// has changed while it runs.
type Resize struct {
	// State is the state of the resize; nil if the pod has the resources of its spec.
	State *ResizeState
	// Actuated are the actual resources of containers, by name, that differ from the pod spec.
	Actuated map[string]v1.ResourceRequirements
	// Level are the actual pod-level resources; nil before InitLevel was called.
	Level *v1.ResourceRequirements

	// applied is the memory request, in bytes, last applied to each running container, by container
	// ID.
	applied map[string]int64
	// relaxed: the limits of the pod's cgroup are wider than those of the pod until the containers
	// that must be restarted for a resize have exited.
	relaxed bool
	// startedGeneration is the generation for which the start of a resize was last reported.
	startedGeneration int64
}

// ResizeState is the state of a resize that is pending, in progress or has failed.
type ResizeState struct {
	// Kind is PodResizePending or PodResizeInProgress. Reason and Message are those of the condition.
	Kind            v1.PodConditionType
	Reason, Message string
	// Trigger is the reason for an early retry; empty for none.
	Trigger string
	// Generation is the pod's generation that is resized to.
	Generation int64
	// Since is when it was first deferred.
	Since time.Time

	retry time.Time
}

// Condition returns the condition PodResizePending or PodResizeInProgress for the pod's status.
func (s *ResizeState) Condition() v1.PodCondition {
	return v1.PodCondition{Type: s.Kind, Status: v1.ConditionTrue, Reason: s.Reason, Message: s.Message}
}

// Deferred reports whether the resize is pending until resources of the node become free. It is false for a
// nil s.
func (s *ResizeState) Deferred() bool {
	return s != nil && s.Kind == v1.PodResizePending && s.Reason == v1.PodReasonDeferred
}

// succeeded reports whether all limits were set. Containers that must be restarted get theirs when they start
// again.
func (s *ResizeState) succeeded() bool { return s.Kind == v1.PodResizeInProgress && s.Reason == "" }

// ResizeRequest is the argument of the operation ResizePod. Pod has the new resources.
type ResizeRequest struct {
	Pod *v1.Pod
	// Containers are the running containers to resize.
	Containers []ContainerResize
	// Granted: the resize was found to fit on the node before.
	Granted bool
	// Sandbox is the ID of the pod's sandbox, or "".
	Sandbox string
	// Since is when the resize was first attempted.
	Since time.Time
}

// ContainerResize is a running container whose limits differ from the pod spec.
type ContainerResize struct {
	ID, Name string
	// Restart: the container must be restarted to be resized.
	Restart bool
	// Shrinks: the container's memory limit decreases.
	Shrinks bool
}

// resizeRetry is the retry interval of a resize that did not fit or failed.
const resizeRetry = 10 * time.Second

// Resizable are the resources whose requests and limits an in-place resize of a pod may change.
var Resizable = []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory}

// newResize returns the state of a pod without a resize. s is the status that an earlier kubelet has written: it
// contains the memory requests of the running containers, which the runtime does not store.
func newResize(s *v1.PodStatus) Resize {
	return Resize{Actuated: map[string]v1.ResourceRequirements{}, applied: memoryRequestsByID(s)}
}

// memoryRequestsByID returns the memory requests in a pod's status, in bytes, by container ID.
func memoryRequestsByID(s *v1.PodStatus) map[string]int64 {
	out := map[string]int64{}
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			if _, id, ok := strings.Cut(list[i].ContainerID, "://"); ok && list[i].Resources != nil {
				out[id] = list[i].Resources.Requests.Memory().Value()
			}
		}
	}
	return out
}

// appliedMemory returns the memory request, in bytes, last applied to the running container c with the ID.
// The runtime does not store it. If it is unknown, it is assumed to be that of the spec, and stored.
func (r *Resize) appliedMemory(id string, c *v1.Container) int64 {
	n, ok := r.applied[id]
	if !ok {
		n = c.Resources.Requests.Memory().Value()
		r.applied[id] = n
	}
	return n
}

// PodLevelResources returns a copy of the pod-level resources of the spec. The result is not nil.
//
// https://kubernetes.io/docs/tasks/configure-pod-container/assign-pod-level-resources/
func PodLevelResources(pod *v1.Pod) *v1.ResourceRequirements {
	if pod.Spec.Resources == nil {
		return &v1.ResourceRequirements{}
	}
	return pod.Spec.Resources.DeepCopy()
}

// InitLevel initializes the actual pod-level resources on its first call: those of the spec or, if a resize was
// pending before the kubelet's restart, those of last, the pod's status in the API.
func (r *Resize) InitLevel(pod *v1.Pod, last *v1.PodStatus) {
	if r.Level != nil {
		return
	}
	level := PodLevelResources(pod)
	if last.Phase == v1.PodRunning && last.Resources != nil {
		for _, name := range Resizable {
			for _, l := range []struct{ of, had v1.ResourceList }{{level.Requests, last.Resources.Requests}, {level.Limits, last.Resources.Limits}} {
				if old, ok := l.had[name]; ok && !l.of[name].Equal(old) {
					if _, asked := l.of[name]; asked {
						l.of[name] = old
					}
				}
			}
		}
	}
	r.Level = level
	r.relaxed = slices.ContainsFunc(last.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodResizeInProgress })
}

// levelDiffers reports whether the actual pod-level resources differ from those of the spec. It is false
// before InitLevel was called.
func (r *Resize) levelDiffers(pod *v1.Pod) bool {
	if r.Level == nil {
		return false
	}
	want := pod.Spec.Resources
	if want == nil {
		want = &v1.ResourceRequirements{}
	}
	return slices.ContainsFunc(Resizable, func(name v1.ResourceName) bool {
		return !r.Level.Requests[name].Equal(want.Requests[name]) || !r.Level.Limits[name].Equal(want.Limits[name])
	})
}

// Actual returns the pod with its actual resources if a resize is pending or in progress, otherwise pod
// itself. The result must not be modified.
func (r *Resize) Actual(pod *v1.Pod) *v1.Pod {
	off := r.levelDiffers(pod)
	if len(r.Actuated) == 0 && !off {
		return pod
	}
	p := *pod
	for _, list := range []*[]v1.Container{&p.Spec.InitContainers, &p.Spec.Containers} {
		*list = slices.Clone(*list)
		for i := range *list {
			if old, ok := r.Actuated[(*list)[i].Name]; ok {
				(*list)[i].Resources = old
			}
		}
	}
	if off {
		p.Spec.Resources = r.Level
	}
	return &p
}

// unlimited maps the runtime's representations of "no limit", 0 and -1, to 0.
func unlimited(n int64) int64 { return max(n, 0) }

// containersToResize returns the running containers whose actual limits differ from those of the pod spec.
// Ephemeral containers and containers that are being stopped are excluded.
func (m *Machine) containersToResize() []ContainerResize {
	var out []ContainerResize
	for id := range m.Resize.applied {
		if m.Containers.Observed.ByID(id) == nil {
			delete(m.Resize.applied, id)
		}
	}
	for i := range m.Containers.Observed.Containers {
		st := &m.Containers.Observed.Containers[i]
		if st.State != podstate.Running || st.Resources == nil || m.Containers.Slots[st.Name].Killing {
			continue
		}
		c, kind := podstate.Find(m.Pod, st.Name)
		if c == nil || kind == podstate.Ephemeral || m.Limits == nil {
			continue
		}
		want, have := m.Limits(m.Pod, c), st.Resources
		cpu := want.CPUShares != have.CPUShares || unlimited(want.CPUQuota) != unlimited(have.CPUQuota)
		memory := unlimited(want.MemoryLimit) != unlimited(have.MemoryLimit) || m.Resize.appliedMemory(st.ID, c) != c.Resources.Requests.Memory().Value()
		if !cpu && !memory {
			continue
		}
		had, gets := unlimited(have.MemoryLimit), unlimited(want.MemoryLimit)
		r := ContainerResize{ID: st.ID, Name: st.Name, Shrinks: gets > 0 && (had == 0 || gets < had)}
		for _, p := range c.ResizePolicy {
			if p.RestartPolicy == v1.RestartContainer && (p.ResourceName == v1.ResourceCPU && cpu || p.ResourceName == v1.ResourceMemory && memory) {
				r.Restart = true
			}
		}
		out = append(out, r)
	}
	return out
}

// stepResize begins a resize if the resources of the pod or of a running container differ from the pod spec.
// If nothing differs any more, it completes the resize in progress. A resize that did not fit or failed is
// retried after resizeRetry. No operation may be in progress.
func (m *Machine) stepResize(in Input, d *Decision) {
	r := &m.Resize
	r.InitLevel(m.Pod, in.Last)
	if r.relaxed && len(m.Kills) > 0 {
		return
	}
	list := m.containersToResize()
	if len(list) == 0 && !r.levelDiffers(m.Pod) && !r.relaxed {
		if r.State != nil && r.State.Kind == v1.PodResizeInProgress {
			d.event("", false, "ResizeCompleted", resizeMessage(m.Pod, "completed", r.State.Generation, ""))
		}
		if r.State != nil {
			r.State = nil
			clear(r.Actuated)
		}
		return
	}
	maps.DeleteFunc(r.Actuated, func(name string, _ v1.ResourceRequirements) bool {
		return !slices.ContainsFunc(list, func(c ContainerResize) bool { return c.Name == name })
	})
	old := r.State
	if old != nil && old.Generation == m.Pod.Generation && old.retry.After(in.Now) {
		d.wake(old.retry)
		return
	}
	for _, c := range list {
		if _, ok := r.Actuated[c.Name]; ok {
			continue
		}
		if s := podstate.StatusOf(in.Last, c.Name); s != nil && s.Resources != nil {
			r.Actuated[c.Name] = *s.Resources
		}
	}
	req := ResizeRequest{Pod: m.Pod, Containers: list, Granted: r.relaxed, Since: in.Now}
	if old != nil && old.Generation == m.Pod.Generation && !old.Since.IsZero() {
		req.Since = old.Since
	}
	if box := m.Containers.Observed.Sandbox(); box != nil {
		req.Sandbox = box.ID
	}
	if old == nil || old.Kind != v1.PodResizePending || old.Generation != m.Pod.Generation {
		r.State = &ResizeState{Generation: m.Pod.Generation, Kind: v1.PodResizeInProgress}
	}
	m.begin(d, Operation{Kind: ResizePod, Resize: req})
}

// FinishResize records that the operation ResizePod with the request has finished with the state result. The
// decision contains events, and stops the containers that must be restarted to be resized. The caller must
// execute it.
func (m *Machine) FinishResize(req *ResizeRequest, result ResizeState, now time.Time) (d Decision) {
	m.Operation = None
	r := &m.Resize
	done := result.succeeded()
	result.Generation, result.Since, result.retry = req.Pod.Generation, req.Since, now.Add(resizeRetry)
	r.stateChanged(req.Pod, &result, &d)
	if done {
		r.Level = PodLevelResources(req.Pod)
		if r.relaxed = slices.ContainsFunc(req.Containers, func(c ContainerResize) bool { return c.Restart }); r.relaxed {
			result.retry = time.Time{}
		}
	}
	r.State = &result
	if !done {
		return d
	}
	for _, c := range req.Containers {
		if c.Restart {
			m.Containers.forceRestart(c.Name, c.ID)
			d.kill(m.kill(c.ID, "Container "+c.Name+" resize requires restart", m.grace(c.ID), false))
		} else if spec, _ := podstate.Find(req.Pod, c.Name); spec != nil {
			r.applied[c.ID] = spec.Resources.Requests.Memory().Value()
		}
	}
	return d
}

// RetryNow makes a deferred resize be retried in the next step. trigger is the reason in the metrics. It
// returns false if no resize is deferred. No operation may be in progress.
func (r *Resize) RetryNow(trigger string) bool {
	if !r.State.Deferred() {
		return false
	}
	r.State.retry, r.State.Trigger = time.Time{}, trigger
	return true
}
