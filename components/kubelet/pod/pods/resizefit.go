package pods

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"

	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/internal/pod/podutil"
)

// podResourceUse has the resources that a pod uses and, if a resize of the pod is deferred, those that the
// resize requests.
type podResourceUse struct {
	pod       *v1.Pod
	used      v1.ResourceList // used resources
	requested v1.ResourceList // resources after the resize; nil without a resize
	priority  int32
	since     time.Time // when the resize was deferred
}

// resourceUse returns the resource use of all pods that have not terminated and were not removed from their
// source. A pod with a pending resize uses its actual resources. A deferred resize counts only if the pod is
// not terminating.
func (r *Registry) resourceUse() []podResourceUse {
	workers := r.all()
	var out []podResourceUse
	for _, w := range workers {
		w.mu.Lock()
		m := w.machine
		if m.Stage == podmachine.Stopped || m.Removed {
			w.mu.Unlock()
			continue
		}
		c := podResourceUse{pod: m.Pod, priority: podutil.Priority(m.Pod)}
		has := m.Pod
		if r := m.Resize.State; r != nil && r.Kind == v1.PodResizePending {
			if has = m.Resize.Actual(m.Pod); has != m.Pod && r.Deferred() && m.Stage == podmachine.Syncing {
				c.requested, c.since = resource.PodRequests(m.Pod, resource.PodResourcesOptions{}), r.Since
			}
		}
		w.mu.Unlock()
		c.used = resource.PodRequests(has, resource.PodResourcesOptions{})
		out = append(out, c)
	}
	return out
}

// before compares two deferred resizes by the priority of their pods, then by QoS class, then by the time since
// when they are deferred, then by UID. It returns a negative number if c gets free resources before d.
func (c *podResourceUse) before(d *podResourceUse) int {
	class := map[v1.PodQOSClass]int{v1.PodQOSGuaranteed: 0, v1.PodQOSBurstable: 1, v1.PodQOSBestEffort: 2}
	return cmp.Or(cmp.Compare(d.priority, c.priority), cmp.Compare(class[QOS(c.pod)], class[QOS(d.pod)]), c.since.Compare(d.since), cmp.Compare(c.pod.UID, d.pod.UID))
}

// podWithActualResources returns a pod with the resources that its containers have now, which differ from its
// spec during a resize. It returns nil if the pod is unknown.
func (r *Registry) podWithActualResources(uid types.UID) *v1.Pod {
	w := r.worker(uid)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.machine.Resize.Actual(w.machine.Pod)
}

// requestChanges reports whether a resize to the spec of pod changes the request of the resource for one of
// its containers. It also returns true if the pod is unknown.
func (r *resizer) requestChanges(pod *v1.Pod, name v1.ResourceName) bool {
	has := r.registry.podWithActualResources(pod.UID)
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

// swapLimitChanges reports whether a resize changes the memory request of a running container and thereby its
// swap limit, which cannot be changed in place. Containers that are restarted for the resize are ignored,
// because they get their new limit then. It returns false if containers may not use swap or the pod is unknown.
func (r *resizer) swapLimitChanges(pod *v1.Pod) bool {
	has := r.registry.podWithActualResources(pod.UID)
	if has == nil || !r.limits.LimitedSwap {
		return false
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		old, _ := podstate.Find(has, c.Name)
		if old == nil || old.Resources.Requests.Memory().Equal(*c.Resources.Requests.Memory()) || resizeRequiresRestart(old, v1.ResourceMemory) {
			continue
		}
		if r.limits.swapDependsOnRequest(pod, &c) || r.limits.swapDependsOnRequest(has, old) {
			return true
		}
	}
	return false
}

// resizeRequiresRestart reports whether a container must be restarted when a resource is resized.
func resizeRequiresRestart(c *v1.Container, name v1.ResourceName) bool {
	return slices.Contains(c.ResizePolicy, v1.ContainerResizePolicy{ResourceName: name, RestartPolicy: v1.RestartContainer})
}

// OtherPods returns the active pods except that with the UID. A pod with a pending resize has its actual
// resources.
func (r *Registry) OtherPods(uid types.UID) []*v1.Pod {
	var out []*v1.Pod
	for _, w := range r.all() {
		if w.uid != uid {
			out = append(out, w.active()...)
		}
	}
	return out
}

// checkFit checks whether the resources of pod after its resize fit on the node. reason is empty if they do,
// PodReasonInfeasible if they never will, and PodReasonDeferred if they may fit later. Deferred resizes of
// pods that precede it get free resources first.
func (r *resizer) checkFit(pod *v1.Pod) (reason, message string) {
	if QOS(pod) == v1.PodQOSGuaranteed {
		if r.limits.StaticCPUs && r.requestChanges(pod, v1.ResourceCPU) {
			r.metrics.ResizeInfeasible("guaranteed_pod_cpu_manager_static_policy")
			return v1.PodReasonInfeasible, "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""
		}
		if r.limits.StaticMemory && r.requestChanges(pod, v1.ResourceMemory) {
			r.metrics.ResizeInfeasible("guaranteed_pod_memory_manager_static_policy")
			return v1.PodReasonInfeasible, "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\""
		}
	}
	if r.swapLimitChanges(pod) {
		r.metrics.ResizeInfeasible("swap_limitation")
		return v1.PodReasonInfeasible, "In-place resize of containers with swap is not supported."
	}
	allocatable := r.limits.allocatable()
	want := resource.PodRequests(pod, resource.PodResourcesOptions{})
	used := map[v1.ResourceName]int64{}
	milli := func(l v1.ResourceList, name v1.ResourceName) int64 { q := l[name]; return q.MilliValue() }
	var waiting []podResourceUse
	mine := podResourceUse{pod: pod, priority: podutil.Priority(pod), since: time.Now()}
	for _, c := range r.registry.resourceUse() {
		switch {
		case c.pod.UID == pod.UID:
			if mine.used = c.used; c.requested != nil {
				mine.since = c.since
			} else {
				mine.used = nil // all of its resources are new
			}
			continue
		case c.requested != nil:
			waiting = append(waiting, c)
		}
		for _, name := range podmachine.Resizable {
			used[name] += milli(c.used, name)
		}
	}
	waiting = slices.DeleteFunc(waiting, func(c podResourceUse) bool { return c.before(&mine) > 0 })
	slices.SortFunc(waiting, func(a, b podResourceUse) int { return a.before(&b) })
	room := func(name v1.ResourceName, more int64) bool {
		all, ok := allocatable[name]
		return !ok || used[name]+more <= all.MilliValue()
	}
	for _, c := range waiting {
		fit := true
		for _, name := range podmachine.Resizable {
			// This pod keeps its resources while it waits.
			fit = fit && room(name, milli(mine.used, name)+milli(c.requested, name)-milli(c.used, name))
		}
		for _, name := range podmachine.Resizable {
			if fit {
				used[name] += milli(c.requested, name) - milli(c.used, name)
			}
		}
	}
	for _, name := range podmachine.Resizable {
		if all, need := allocatable[name], milli(want, name); !room(name, need) {
			return v1.PodReasonDeferred, fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
				name, units(name, need), units(name, used[name]), units(name, all.MilliValue()))
		}
	}
	return "", ""
}

// units converts an amount in thousandths to the unit of messages: millicores for CPU, bytes for memory.
func units(name v1.ResourceName, milli int64) int64 {
	if name == v1.ResourceCPU {
		return milli
	}
	return milli / 1000
}
