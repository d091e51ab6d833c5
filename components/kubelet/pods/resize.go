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
	"hyperkube/components/kubelet/podstate"
	"hyperkube/internal/cgroup"
)

// resizeRetry is how long a resize that did not fit, or failed, waits.
const resizeRetry = 10 * time.Second

// resizing is a running container whose limits are not what the pod says.
type resizing struct {
	id, name string
	want     *runtimeapi.LinuxContainerResources
	restart  bool
	shrinks  bool // it may use less memory from now on
}

// unlimited makes the two ways to say "no limit" one.
func unlimited(n int64) int64 { return max(n, 0) }

// unsized returns the containers that are to be resized in place. The caller
// holds mu.
func (w *worker) unsized() []resizing {
	var out []resizing
	for id := range w.given {
		if w.obs.ByID(id) == nil {
			delete(w.given, id)
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
		memory := unlimited(want.MemoryLimitInBytes) != unlimited(have.MemoryLimit) || w.givenTo(st, c) != c.Resources.Requests.Memory().Value()
		if !cpu && !memory {
			continue
		}
		had, gets := unlimited(have.MemoryLimit), unlimited(want.MemoryLimitInBytes)
		shrinks := gets > 0 && (had == 0 || gets < had)
		// Zero means "as before" to a runtime.
		if want.CpuQuota == 0 {
			want.CpuQuota = -1
		}
		if want.MemoryLimitInBytes == 0 {
			want.MemoryLimitInBytes = -1
		}
		r := resizing{id: st.ID, name: st.Name, want: want, shrinks: shrinks}
		for _, p := range c.ResizePolicy {
			if p.RestartPolicy == v1.RestartContainer && (p.ResourceName == v1.ResourceCPU && cpu || p.ResourceName == v1.ResourceMemory && memory) {
				r.restart = true
			}
		}
		out = append(out, r)
	}
	return out
}

// givenTo is the memory that a running container asked for: when it was first seen, or
// as the kubelet before this one told. A runtime does not know. The caller holds mu.
func (w *worker) givenTo(st *podstate.Container, c *v1.Container) int64 {
	n, ok := w.given[st.ID]
	if !ok {
		n = c.Resources.Requests.Memory().Value()
		w.given[st.ID] = n
	}
	return n
}

// told are the requests of memory, in bytes, of containers that a pod's status knows,
// by their IDs.
func told(s *v1.PodStatus) map[string]int64 {
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

// startResize resizes containers whose limits are not what the pod says, and
// returns when it is to be called again. The caller holds mu; there is no
// operation.
func (w *worker) startResize(ctx context.Context, now time.Time) time.Time {
	w.findLevel()
	if w.loose && len(w.kills) > 0 {
		return time.Time{}
	}
	list := w.unsized()
	if len(list) == 0 && !w.offLevel() && !w.loose {
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
		return !slices.ContainsFunc(list, func(r resizing) bool { return r.name == name })
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
	granted := w.loose
	box := ""
	if s := w.obs.Sandbox(); s != nil {
		box = s.ID
	}
	w.report.wait.Go(func() {
		defer cancel()
		began := time.Now()
		state := w.host.resize(opCtx, pod, box, list, granted, func() { w.resizeBegins(pod) })
		state.generation, state.retry, state.since = pod.Generation, time.Now().Add(resizeRetry), since
		if state.kind == v1.PodResizeInProgress {
			w.host.Metrics.Resized(time.Since(began), state.reason == "")
		}
		if state.kind == v1.PodResizeInProgress && state.reason == "" && w.host.Resizing.Resized != nil {
			// Others may fit now.
			defer w.host.Resizing.Resized()
		}
		w.update(func() {
			w.op = nil
			w.resized(ctx, pod, list, since, &state)
		})
	})
	return time.Time{}
}

// resized takes in what has come of resizing the containers of list, which began at
// since, and ends those that take new resources only from a start. The caller holds mu.
func (w *worker) resized(ctx context.Context, pod *v1.Pod, list []resizing, since time.Time, state *resizeState) {
	done := state.kind == v1.PodResizeInProgress && state.reason == ""
	w.tellResize(pod, state)
	if old := w.resize; old != nil && old.kind == v1.PodResizePending && old.reason == v1.PodReasonDeferred && state.kind == v1.PodResizeInProgress {
		w.host.Metrics.ResizeAccepted(pod, cmp.Or(old.trigger, "periodic_retry"), time.Since(since))
	}
	if done {
		w.level = levelOf(pod)
		if w.loose = slices.ContainsFunc(list, func(r resizing) bool { return r.restart }); w.loose {
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
			w.given[r.id] = c.Resources.Requests.Memory().Value()
		}
	}
}

// resizeState is what is told of a resize.
type resizeState struct {
	generation      int64
	kind            v1.PodConditionType
	reason, message string
	retry           time.Time
	since           time.Time // when it was first put off
	// trigger is why it is tried again before its time; empty: nothing.
	trigger string
}

func (s *resizeState) condition() v1.PodCondition {
	return v1.PodCondition{Type: s.kind, Status: v1.ConditionTrue, Reason: s.reason, Message: s.message}
}

// resize gives the pod's cgroup and its containers their new limits: the pod's
// bound grows before and shrinks after those of its containers. With containers
// that must be restarted it only grows: they use more until they have ended. The runtime
// is told what the pod in the sandbox box gets, and may refuse it.
// begins is called when it is known to fit, which it does if it was granted before.
func (h *Host) resize(ctx context.Context, pod *v1.Pod, box string, list []resizing, granted bool, begins func()) resizeState {
	if h.Resizing.Fits != nil && !granted {
		reason, message := h.Resizing.Fits(pod)
		if reason == v1.PodReasonDeferred && h.Resizing.MakeRoom != nil {
			var made bool
			if made, message = h.Resizing.MakeRoom(ctx, pod, message); made {
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
	restart := slices.ContainsFunc(list, func(r resizing) bool { return r.restart })
	if err := h.room(ctx, pod, final, list, restart); err != nil {
		return failed(fmt.Errorf("cannot decrease memory limits: %w", err))
	}
	shrinks := restart // unless it is known not to
	open := cgroup.Resources{CPUShares: final.CPUShares, CPUQuota: cgroup.Unlimited, MemoryLimit: cgroup.Unlimited}
	if restart && h.Limits.Cgroups != nil {
		if now, err := h.Limits.Cgroups.Stats(h.cgroupOf(pod)); err == nil && now.MemoryLimit > 0 && final.MemoryLimit > 0 {
			open.MemoryLimit = max(int64(now.MemoryLimit), final.MemoryLimit)
			shrinks = open.MemoryLimit > final.MemoryLimit
		}
	}
	if !shrinks {
		if err := h.tellRuntime(ctx, pod, box); err != nil {
			return failed(err)
		}
	}
	if h.Limits.Cgroups != nil {
		if err := h.Limits.Cgroups.Set(h.cgroupOf(pod), open); err != nil {
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
		if err := h.Limits.Cgroups.Set(h.cgroupOf(pod), final); err != nil {
			return failed(fmt.Errorf("resizing the pod: %w", err))
		}
		h.Hooks.weigh()
	}
	return resizeState{kind: v1.PodResizeInProgress}
}

// tellRuntime tells the runtime what a pod as a whole has from now on: one that keeps it
// in a machine of its own must make that machine larger or smaller. Not every runtime
// wants to know.
func (h *Host) tellRuntime(ctx context.Context, pod *v1.Pod, box string) error {
	if box == "" {
		return nil
	}
	own, overhead := h.sandboxResources(pod)
	_, err := h.CRI.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: box, Resources: own, Overhead: overhead})
	// Some do not say it by the code that is there for it.
	if err == nil || cri.IsUnimplemented(err) || strings.Contains(cri.Message(err), "not implemented") {
		return nil
	}
	return fmt.Errorf("the runtime refuses to resize the pod: %s", cri.Message(err))
}

// retryResizes makes the pods whose resizes wait for room try again at once, for
// there is more of it; trigger is why, in the words of metrics.
func (m *Manager) retryResizes(trigger string) {
	m.retry(func(w *worker) bool {
		waits := w.op == nil && w.resize != nil && w.resize.kind == v1.PodResizePending && w.resize.reason == v1.PodReasonDeferred
		if waits {
			w.resize.retry, w.resize.trigger = time.Time{}, trigger
		}
		return waits
	})
}
