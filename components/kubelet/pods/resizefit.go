package pods

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"

	"hyperkube/components/kubelet/podstate"
	"hyperkube/internal/podfacts"
)

// claim is what a pod takes of the node, or wants of it.
type claim struct {
	pod      *v1.Pod
	has      v1.ResourceList // what it takes
	wants    v1.ResourceList // what its resize would take; nil without one
	priority int32
	since    time.Time // when its resize was put off
}

// claims are those of all pods that have not ended, nor are deleted. A pod whose resize
// waits takes what its containers have, and wants more only as long as it is to run.
func (m *Manager) claims() []claim {
	workers := m.all()
	var out []claim
	for _, w := range workers {
		w.mu.Lock()
		if w.stage == stopped || w.gone {
			w.mu.Unlock()
			continue
		}
		c := claim{pod: w.pod, priority: podfacts.Priority(w.pod)}
		has := w.pod
		if r := w.resize; r != nil && r.kind == v1.PodResizePending {
			if has = w.actual(); has != w.pod && r.reason == v1.PodReasonDeferred && w.stage == syncing {
				c.wants, c.since = resource.PodRequests(w.pod, resource.PodResourcesOptions{}), r.since
			}
		}
		w.mu.Unlock()
		c.has = resource.PodRequests(has, resource.PodResourcesOptions{})
		out = append(out, c)
	}
	return out
}

// before orders resizes that wait: by priority, then by class, then by time.
func (c *claim) before(d *claim) int {
	class := map[v1.PodQOSClass]int{v1.PodQOSGuaranteed: 0, v1.PodQOSBurstable: 1, v1.PodQOSBestEffort: 2}
	return cmp.Or(cmp.Compare(d.priority, c.priority), cmp.Compare(class[QOS(c.pod)], class[QOS(d.pod)]), c.since.Compare(d.since), cmp.Compare(c.pod.UID, d.pod.UID))
}

// has returns a pod with the resources that its containers have; nil when it is not known.
func (m *Manager) has(uid types.UID) *v1.Pod {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.actual()
}

// resizes tells whether a container of the pod is to have more or less of a resource
// than it has.
func (m *Manager) resizes(pod *v1.Pod, name v1.ResourceName) bool {
	has := m.has(pod.UID)
	if has == nil {
		return true
	}
	differs := func(want, has []v1.Container) bool {
		for i := range min(len(want), len(has)) {
			a, b := want[i].Resources.Requests[name], has[i].Resources.Requests[name]
			if a.Cmp(b) != 0 {
				return true
			}
		}
		return false
	}
	return differs(pod.Spec.InitContainers, has.Spec.InitContainers) || differs(pod.Spec.Containers, has.Spec.Containers)
}

// resizesSwap tells whether a running container would have more or less memory whose part
// of the swap goes by that. One that is started again for it gets the new part then.
func (m *Manager) resizesSwap(pod *v1.Pod) bool {
	has := m.has(pod.UID)
	if has == nil || !m.host.Limits.LimitedSwap {
		return false
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		old, _ := podstate.Find(has, c.Name)
		if old == nil || old.Resources.Requests.Memory().Equal(*c.Resources.Requests.Memory()) || restartsFor(old, v1.ResourceMemory) {
			continue
		}
		if m.host.swaps(pod, &c) || m.host.swaps(has, old) {
			return true
		}
	}
	return false
}

// restartsFor tells whether a container is started again when it gets more or less of a
// resource.
func restartsFor(c *v1.Container, name v1.ResourceName) bool {
	return slices.Contains(c.ResizePolicy, v1.ContainerResizePolicy{ResourceName: name, RestartPolicy: v1.RestartContainer})
}

// Others are the pods that have not ended but for one, with what they have: what a resize
// that waits would give them is not theirs.
func (m *Manager) Others(uid types.UID) []*v1.Pod {
	var out []*v1.Pod
	for _, w := range m.all() {
		if w.uid != uid {
			out = append(out, w.active()...)
		}
	}
	return out
}

// resizable are the resources that a resize may change.
var resizable = []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory}

// fits tells why a resized pod does not fit on the node; empty if it does. What
// there is goes first to those that have waited before it.
func (m *Manager) fits(pod *v1.Pod) (reason, message string) {
	if QOS(pod) == v1.PodQOSGuaranteed {
		if m.host.Resizing.StaticCPUs && m.resizes(pod, v1.ResourceCPU) {
			m.host.Metrics.ResizeInfeasible("guaranteed_pod_cpu_manager_static_policy")
			return v1.PodReasonInfeasible, "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""
		}
		if m.host.Resizing.StaticMemory && m.resizes(pod, v1.ResourceMemory) {
			m.host.Metrics.ResizeInfeasible("guaranteed_pod_memory_manager_static_policy")
			return v1.PodReasonInfeasible, "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\""
		}
	}
	if m.resizesSwap(pod) {
		m.host.Metrics.ResizeInfeasible("swap_limitation")
		return v1.PodReasonInfeasible, "In-place resize of containers with swap is not supported."
	}
	allocatable := m.host.Allocatable()
	want := resource.PodRequests(pod, resource.PodResourcesOptions{})
	used := map[v1.ResourceName]int64{}
	milli := func(l v1.ResourceList, name v1.ResourceName) int64 { q := l[name]; return q.MilliValue() }
	var waiting []claim
	mine := claim{pod: pod, priority: podfacts.Priority(pod), since: time.Now()}
	for _, c := range m.claims() {
		switch {
		case c.pod.UID == pod.UID:
			if mine.has = c.has; c.wants != nil {
				mine.since = c.since
			} else {
				mine.has = nil // it is all new
			}
			continue
		case c.wants != nil:
			waiting = append(waiting, c)
		}
		for _, name := range resizable {
			used[name] += milli(c.has, name)
		}
	}
	waiting = slices.DeleteFunc(waiting, func(c claim) bool { return c.before(&mine) > 0 })
	slices.SortFunc(waiting, func(a, b claim) int { return a.before(&b) })
	room := func(name v1.ResourceName, more int64) bool {
		all, ok := allocatable[name]
		return !ok || used[name]+more <= all.MilliValue()
	}
	for _, c := range waiting {
		fit := true
		for _, name := range resizable {
			// This pod's own part is its own as long as it waits.
			fit = fit && room(name, milli(mine.has, name)+milli(c.wants, name)-milli(c.has, name))
		}
		for _, name := range resizable {
			if fit {
				used[name] += milli(c.wants, name) - milli(c.has, name)
			}
		}
	}
	for _, name := range resizable {
		if all, need := allocatable[name], milli(want, name); !room(name, need) {
			return v1.PodReasonDeferred, fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
				name, units(name, need), units(name, used[name]), units(name, all.MilliValue()))
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
