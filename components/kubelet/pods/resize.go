package pods

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
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
}

// unlimited makes the two ways to say "no limit" one.
func unlimited(n int64) int64 { return max(n, 0) }

// unsized returns the containers that are to be resized in place. The caller
// holds mu.
func (w *worker) unsized() []resizing {
	var out []resizing
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
		memory := unlimited(want.MemoryLimitInBytes) != unlimited(have.MemoryLimit)
		if !cpu && !memory {
			continue
		}
		// Zero means "as before" to a runtime.
		if want.CpuQuota == 0 {
			want.CpuQuota = -1
		}
		if want.MemoryLimitInBytes == 0 {
			want.MemoryLimitInBytes = -1
		}
		r := resizing{id: st.ID, name: st.Name, want: want}
		for _, p := range c.ResizePolicy {
			if p.RestartPolicy == v1.RestartContainer && (p.ResourceName == v1.ResourceCPU && cpu || p.ResourceName == v1.ResourceMemory && memory) {
				r.restart = true
			}
		}
		out = append(out, r)
	}
	return out
}

// startResize resizes containers whose limits are not what the pod says, and
// returns when it is to be called again. The caller holds mu; there is no
// operation.
func (w *worker) startResize(ctx context.Context, now time.Time) time.Time {
	list := w.unsized()
	if len(list) == 0 {
		if w.resize != nil {
			w.resize = nil
			clear(w.actuated)
		}
		return time.Time{}
	}
	left := map[string]bool{}
	for _, r := range list {
		left[r.name] = true
	}
	for name := range w.actuated {
		if !left[name] {
			delete(w.actuated, name)
		}
	}
	if w.resize != nil && w.resize.generation == w.pod.Generation && w.resize.retry.After(now) {
		return w.resize.retry
	}
	for _, r := range list {
		if _, ok := w.actuated[r.name]; ok {
			continue
		}
		if s := findStatus(w.report.last, r.name); s != nil && s.Resources != nil {
			w.actuated[r.name] = *s.Resources
		}
	}
	pod := w.pod
	opCtx, cancel := context.WithCancel(ctx)
	w.op = &operation{cancel: cancel}
	w.resize = &resizeState{generation: pod.Generation, kind: v1.PodResizeInProgress}
	w.report.wait.Add(1)
	go func() {
		defer w.report.wait.Done()
		defer cancel()
		state := w.host.resize(opCtx, pod, list)
		state.generation, state.retry = pod.Generation, time.Now().Add(resizeRetry)
		w.update(func() {
			w.op = nil
			w.resize = &state
			for _, r := range list {
				w.dirtyIDs[r.id] = true
			}
			for _, r := range list {
				if r.restart && state.kind == v1.PodResizeInProgress && state.reason == "" {
					s := w.slots[r.name]
					s.ForceRestart = r.id
					w.slots[r.name] = s
					w.startKill(ctx, r.id, "Container "+r.name+" resize requires restart", w.killGrace(r.id))
				}
			}
		})
	}()
	return time.Time{}
}

// resizeState is what is told of a resize.
type resizeState struct {
	generation      int64
	kind            v1.PodConditionType
	reason, message string
	retry           time.Time
}

func (s *resizeState) condition() v1.PodCondition {
	return v1.PodCondition{Type: s.kind, Status: v1.ConditionTrue, Reason: s.reason, Message: s.message}
}

// resize gives the pod's cgroup and its containers their new limits: the pod's
// bound grows before and shrinks after those of its containers.
func (h *Host) resize(ctx context.Context, pod *v1.Pod, list []resizing) resizeState {
	if h.Fits != nil {
		if reason, message := h.Fits(pod); reason != "" {
			return resizeState{kind: v1.PodResizePending, reason: reason, message: message}
		}
	}
	failed := func(err error) resizeState {
		return resizeState{kind: v1.PodResizeInProgress, reason: v1.PodReasonError, message: err.Error()}
	}
	final := h.podResources(pod)
	if h.Cgroups != nil {
		open := cgroup.Resources{CPUShares: final.CPUShares, CPUQuota: cgroup.Unlimited, MemoryLimit: cgroup.Unlimited}
		if err := h.Cgroups.Set(h.cgroupOf(pod), open); err != nil {
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
	if h.Cgroups != nil {
		if err := h.Cgroups.Set(h.cgroupOf(pod), final); err != nil {
			return failed(fmt.Errorf("resizing the pod: %w", err))
		}
	}
	return resizeState{kind: v1.PodResizeInProgress}
}

// fits tells why a resized pod does not fit on the node; empty if it does.
func (m *Manager) fits(pod *v1.Pod) (reason, message string) {
	if m.host.StaticCPUs && QOS(pod) == v1.PodQOSGuaranteed {
		return v1.PodReasonInfeasible, "Resize is infeasible for Guaranteed Pods alongside CPU Manager static policy"
	}
	allocatable := m.host.Allocatable()
	want := resource.PodRequests(pod, resource.PodResourcesOptions{})
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		all, ok := allocatable[name]
		if !ok {
			continue
		}
		need := want[name]
		if need.Cmp(all) > 0 {
			return v1.PodReasonInfeasible, fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, units(name, need.MilliValue()), units(name, all.MilliValue()))
		}
		used := int64(0)
		for _, other := range m.Active() {
			if other.UID != pod.UID {
				requests := resource.PodRequests(other, resource.PodResourcesOptions{})
				q := requests[name]
				used += q.MilliValue()
			}
		}
		if used+need.MilliValue() > all.MilliValue() {
			return v1.PodReasonDeferred, fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
				name, units(name, need.MilliValue()), units(name, used), units(name, all.MilliValue()))
		}
	}
	return "", ""
}

// units are millicores, or bytes.
func units(name v1.ResourceName, milli int64) int64 {
	if name == v1.ResourceCPU {
		return milli
	}
	return milli / 1000
}
