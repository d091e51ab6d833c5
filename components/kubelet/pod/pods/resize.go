package pods

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/internal/host/cgroup"
)

// resizeRetry is the retry interval of a resize that did not fit or failed.
const resizeRetry = 10 * time.Second

// containerResize is a running container whose limits differ from the pod spec.
type containerResize struct {
	id, name string
	want     *runtimeapi.LinuxContainerResources
	restart  bool
	shrinks  bool // its memory limit decreases
}

// unlimited maps both representations of "no limit" to 0.
func unlimited(n int64) int64 { return max(n, 0) }

// containersToResize returns the containers to resize in place. The caller must hold mu.
func (w *worker) containersToResize() []containerResize {
	var out []containerResize
	for id := range w.lastAppliedMemory {
		if w.obs.ByID(id) == nil {
			delete(w.lastAppliedMemory, id)
		}
	}
	for i := range w.obs.Containers {
		st := &w.obs.Containers[i]
		if st.State != podstate.Running || st.Resources == nil || w.slots[st.Name].Killing {
			continue
		}
		c, kind := podstate.Find(w.pod, st.Name)
		if c == nil || kind == podstate.Ephemeral {
			continue
		}
		want, have := w.host.containerResources(w.pod, c), st.Resources
		cpu := want.CpuShares != have.CPUShares || unlimited(want.CpuQuota) != unlimited(have.CPUQuota)
		memory := unlimited(want.MemoryLimitInBytes) != unlimited(have.MemoryLimit) || w.appliedMemory(st, c) != c.Resources.Requests.Memory().Value()
		if !cpu && !memory {
			continue
		}
		had, gets := unlimited(have.MemoryLimit), unlimited(want.MemoryLimitInBytes)
		shrinks := gets > 0 && (had == 0 || gets < had)
		// In CRI, zero means unchanged.
		if want.CpuQuota == 0 {
			want.CpuQuota = -1
		}
		if want.MemoryLimitInBytes == 0 {
			want.MemoryLimitInBytes = -1
		}
		r := containerResize{id: st.ID, name: st.Name, want: want, shrinks: shrinks}
		for _, p := range c.ResizePolicy {
			if p.RestartPolicy == v1.RestartContainer && (p.ResourceName == v1.ResourceCPU && cpu || p.ResourceName == v1.ResourceMemory && memory) {
				r.restart = true
			}
		}
		out = append(out, r)
	}
	return out
}

// appliedMemory returns the memory request last applied to a running container: that of its first
// observation, or of the status after a restart. The runtime does not store it. The caller must
// hold mu.
func (w *worker) appliedMemory(st *podstate.Container, c *v1.Container) int64 {
	n, ok := w.lastAppliedMemory[st.ID]
	if !ok {
		n = c.Resources.Requests.Memory().Value()
		w.lastAppliedMemory[st.ID] = n
	}
	return n
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

// startResize starts to resize the pod and its running containers if their resources differ from the
// pod spec. If nothing differs anymore, it records that the resize completed. It returns the time of
// the next attempt, or zero if none is scheduled. The caller must hold mu, and no operation may be
// running.
func (w *worker) startResize(ctx context.Context, now time.Time) time.Time {
	w.initLevel()
	if w.limitsRelaxed && len(w.kills) > 0 {
		return time.Time{}
	}
	list := w.containersToResize()
	if len(list) == 0 && !w.levelDiffers() && !w.limitsRelaxed {
		if w.resize != nil {
			if w.resize.kind == v1.PodResizeInProgress {
				w.host.event(w.pod, "", false, "ResizeCompleted", resizeMessage(w.pod, "completed", w.resize.generation, ""))
			}
			w.resize = nil
			clear(w.actuated)
		}
		return time.Time{}
	}
	maps.DeleteFunc(w.actuated, func(name string, _ v1.ResourceRequirements) bool {
		return !slices.ContainsFunc(list, func(r containerResize) bool { return r.name == name })
	})
	if w.resize != nil && w.resize.generation == w.pod.Generation && w.resize.retry.After(now) {
		return w.resize.retry
	}
	for _, r := range list {
		if _, ok := w.actuated[r.name]; ok {
			continue
		}
		if s := podstate.StatusOf(w.report.last, r.name); s != nil && s.Resources != nil {
			w.actuated[r.name] = *s.Resources
		}
	}
	pod := w.pod
	opCtx, cancel := context.WithCancel(ctx)
	w.op = &operation{cancel: cancel}
	since := time.Now()
	if old := w.resize; old != nil && old.generation == pod.Generation && !old.since.IsZero() {
		since = old.since
	}
	if old := w.resize; old == nil || old.kind != v1.PodResizePending || old.generation != pod.Generation {
		w.resize = &resizeState{generation: pod.Generation, kind: v1.PodResizeInProgress}
	}
	granted := w.limitsRelaxed
	box := ""
	if s := w.obs.Sandbox(); s != nil {
		box = s.ID
	}
	w.report.wait.Go(func() {
		defer cancel()
		began := time.Now()
		state := w.host.resize(opCtx, pod, box, list, granted, func() { w.emitResizeStarted(pod) })
		state.generation, state.retry, state.since = pod.Generation, time.Now().Add(resizeRetry), since
		if state.kind == v1.PodResizeInProgress {
			w.host.Metrics.Resized(time.Since(began), state.reason == "")
		}
		if state.kind == v1.PodResizeInProgress && state.reason == "" {
			// Other pending resizes may fit now.
			defer w.host.Registry.retryResizes("pod_resized")
		}
		w.update(func() {
			w.op = nil
			w.finishResize(ctx, pod, list, since, &state)
		})
	})
	return time.Time{}
}

// finishResize handles the result of resizing the containers of list, which was started at since, and
// stops containers that must be restarted. The caller must hold mu.
func (w *worker) finishResize(ctx context.Context, pod *v1.Pod, list []containerResize, since time.Time, state *resizeState) {
	done := state.kind == v1.PodResizeInProgress && state.reason == ""
	w.emitResizeState(pod, state)
	if old := w.resize; old != nil && old.kind == v1.PodResizePending && old.reason == v1.PodReasonDeferred && state.kind == v1.PodResizeInProgress {
		w.host.Metrics.ResizeAccepted(pod, cmp.Or(old.trigger, "periodic_retry"), time.Since(since))
	}
	if done {
		w.level = podLevelResources(pod)
		if w.limitsRelaxed = slices.ContainsFunc(list, func(r containerResize) bool { return r.restart }); w.limitsRelaxed {
			state.retry = time.Time{}
		}
	}
	w.resize = state
	for _, r := range list {
		w.dirtyIDs[r.id] = true
		if !done {
			continue
		}
		if r.restart {
			s := w.slots[r.name]
			s.ForceRestart = r.id
			w.slots[r.name] = s
			w.startKill(ctx, r.id, "Container "+r.name+" resize requires restart", w.killGrace(r.id))
		} else if c, _ := podstate.Find(pod, r.name); c != nil {
			w.lastAppliedMemory[r.id] = c.Resources.Requests.Memory().Value()
		}
	}
}

// resizeState is the state of a resize.
type resizeState struct {
	generation      int64
	kind            v1.PodConditionType
	reason, message string
	retry           time.Time
	since           time.Time // when it was first deferred
	// trigger is the reason for an early retry; empty for none.
	trigger string
}

func (s *resizeState) condition() v1.PodCondition {
	return v1.PodCondition{Type: s.kind, Status: v1.ConditionTrue, Reason: s.reason, Message: s.message}
}

// resize sets the limits of the pod's cgroup and its containers. An increased pod limit is set
// before those of the containers, a decreased one after them. If containers must be restarted, the
// pod limit is only increased, because they use more until they have exited. The runtime gets the
// new resources of the sandbox box and may reject them. begins is called when the resize is known
// to fit. granted means that it was found to fit before.
func (h *host) resize(ctx context.Context, pod *v1.Pod, box string, list []containerResize, granted bool, begins func()) resizeState {
	if !granted {
		reason, message := h.checkFit(pod)
		if reason == v1.PodReasonDeferred && h.Admitter != nil {
			var freed bool
			if freed, message = h.Admitter.PreemptForResize(ctx, pod, message); freed {
				reason = ""
			}
		}
		if reason != "" {
			return resizeState{kind: v1.PodResizePending, reason: reason, message: message}
		}
	}
	begins()
	failed := func(err error) resizeState {
		return resizeState{kind: v1.PodResizeInProgress, reason: v1.PodReasonError, message: err.Error()}
	}
	final := h.podResources(pod)
	restart := slices.ContainsFunc(list, func(r containerResize) bool { return r.restart })
	if err := h.checkMemoryUsage(ctx, pod, final, list, restart); err != nil {
		return failed(fmt.Errorf("cannot decrease memory limits: %w", err))
	}
	shrinks := restart // unless known otherwise
	open := cgroup.Resources{CPUShares: final.CPUShares, CPUQuota: cgroup.Unlimited, MemoryLimit: cgroup.Unlimited}
	if restart && h.Limits.Cgroups != nil {
		if now, err := h.Limits.Cgroups.Stats(h.cgroups.ofPod(pod)); err == nil && now.MemoryLimit > 0 && final.MemoryLimit > 0 {
			open.MemoryLimit = max(int64(now.MemoryLimit), final.MemoryLimit)
			shrinks = open.MemoryLimit > final.MemoryLimit
		}
	}
	if !shrinks {
		if err := h.updateSandboxResources(ctx, pod, box); err != nil {
			return failed(err)
		}
	}
	if h.Limits.Cgroups != nil {
		if err := h.Limits.Cgroups.Set(h.cgroups.ofPod(pod), open); err != nil {
			return failed(fmt.Errorf("resizing the pod: %w", err))
		}
	}
	for _, r := range list {
		if r.restart {
			continue
		}
		_, err := h.CRI.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: r.id, Linux: r.want})
		if err != nil && !cri.IsNotFound(err) {
			return failed(fmt.Errorf("resizing container %s: %s", r.name, cri.Message(err)))
		}
	}
	if h.Limits.Cgroups != nil && !restart {
		if err := h.Limits.Cgroups.Set(h.cgroups.ofPod(pod), final); err != nil {
			return failed(fmt.Errorf("resizing the pod: %w", err))
		}
		h.weights.update()
	}
	return resizeState{kind: v1.PodResizeInProgress}
}

// updateSandboxResources passes the new resources of a pod to the runtime: a runtime that runs the pod in a
// virtual machine must resize it. Runtimes need not support the call.
func (h *host) updateSandboxResources(ctx context.Context, pod *v1.Pod, box string) error {
	if box == "" {
		return nil
	}
	own, overhead := h.sandboxResources(pod)
	_, err := h.CRI.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: box, Resources: own, Overhead: overhead})
	// Some runtimes do not use the gRPC code Unimplemented.
	if err == nil || cri.IsUnimplemented(err) || strings.Contains(cri.Message(err), "not implemented") {
		return nil
	}
	return fmt.Errorf("the runtime refuses to resize the pod: %s", cri.Message(err))
}

// retryResizes immediately retries deferred resizes because resources were freed. trigger is the
// reason for metrics.
func (r *Registry) retryResizes(trigger string) {
	r.retry(func(w *worker) bool {
		waits := w.op == nil && w.resize != nil && w.resize.kind == v1.PodResizePending && w.resize.reason == v1.PodReasonDeferred
		if waits {
			w.resize.retry, w.resize.trigger = time.Time{}, trigger
		}
		return waits
	})
}
