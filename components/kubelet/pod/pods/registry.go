package pods

import (
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/pod/volume"
)

// Registry tracks the pods of the node. It is created before the Manager, which adds the pods and
// runs them, so that parts that the Manager depends on can list, wake and terminate pods. Its
// methods are safe for concurrent use.
type Registry struct {
	mu      sync.Mutex // guards workers
	workers map[types.UID]*worker
}

// NewRegistry returns a Registry without pods.
func NewRegistry() *Registry { return &Registry{workers: map[types.UID]*worker{}} }

// add adds a worker unless its pod already has one. others are the other pods that have not terminated, for
// the admission. existing is the pod's existing worker, or nil if w was added.
func (r *Registry) add(w *worker) (others []*v1.Pod, existing *worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if existing = r.workers[w.uid]; existing != nil {
		return nil, existing
	}
	for _, o := range r.workers {
		others = append(others, o.active()...)
	}
	r.workers[w.uid] = w
	return others, nil
}

// remove removes a worker when its pod has terminated and everything of it is removed.
func (r *Registry) remove(w *worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.workers, w.uid)
}

// Changed makes the worker of a static pod write the status again, because its mirror pod has appeared or
// changed. uid is the UID of the static pod. An unknown UID is ignored.
func (r *Registry) Changed(uid types.UID) {
	w := r.worker(uid)
	if w != nil {
		w.update(func() { w.report.halted = false })
	}
}

// RetryVolumes immediately retries operations on pods that have failed and wait for a back-off, such as setups
// and teardowns of volumes, because the cause of the failures may have been removed: a CSI driver has
// registered.
func (r *Registry) RetryVolumes() {
	r.retry(func(w *worker) bool {
		return w.machine.RetryNow()
	})
}

// retry wakes the workers for which ready returns true. ready is called with the worker's lock
// held.
func (r *Registry) retry(ready func(*worker) bool) {
	for _, w := range r.all() {
		w.mu.Lock()
		waits := ready(w)
		w.mu.Unlock()
		if waits {
			w.kick()
		}
	}
}

// worker returns the worker of a pod, or nil.
func (r *Registry) worker(uid types.UID) *worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.workers[uid]
}

// all returns all workers, for callers that must not hold mu while they access the workers.
func (r *Registry) all() []*worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.workers))
}

// Refresh updates the volumes of the pods for which uses returns true, because an object that they refer to
// has changed.
func (r *Registry) Refresh(uses func(*v1.Pod) bool) {
	for _, w := range r.all() {
		if uses(w.pod()) {
			w.objectsChanged()
		}
	}
}

// Volumes returns a pod's volumes by name. It returns nil if the pod is unknown, is terminating, or its
// volumes are not set up. The result is shared and must not be modified.
func (r *Registry) Volumes(uid types.UID) map[string]volume.Result {
	w := r.worker(uid)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.machine.Stage != podmachine.Syncing || !w.machine.Volumes.Mounted {
		return nil
	}
	return w.volumes.byName
}

// Cgroup returns a pod's cgroup as a path from the root of the hierarchy, or "" if there is no such
// pod.
func (r *Registry) Cgroup(uid types.UID) string {
	w := r.worker(uid)
	if w == nil {
		return ""
	}
	return w.host.cgroups.ofPod(w.pod())
}

// Done returns a channel that is closed when the pod has terminated and its containers, volumes and logs are
// removed, or nil if there is no such pod.
func (r *Registry) Done(uid types.UID) <-chan struct{} {
	if w := r.worker(uid); w != nil {
		return w.ends.done
	}
	return nil
}

// Cleaned returns a channel that is closed when no process of the pod runs and its volumes are removed.
// Preemption, shutdown and the release of ResourceClaims wait for it. The channel is already closed if there
// is no such pod.
func (r *Registry) Cleaned(uid types.UID) <-chan struct{} {
	if w := r.worker(uid); w != nil {
		return w.ends.cleaned
	}
	none := make(chan struct{})
	close(none)
	return none
}

// Remove removes a pod from the desired pods, because its source does not have it any more: the pod is
// terminated, and its containers, volumes and logs are removed. An unknown UID is ignored.
func (r *Registry) Remove(uid types.UID) {
	w := r.worker(uid)
	if w != nil {
		w.update(w.machine.Remove)
	}
}

// RestartRemoved requests that a pod that is being removed is run again afterwards, as happens when the
// manifest of a static pod is restored. Its exited containers are kept and count as previous
// attempts. The caller must call Set when the returned channel is closed. The channel is nil if the
// pod is not being removed.
func (r *Registry) RestartRemoved(uid types.UID) <-chan struct{} {
	w := r.worker(uid)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.machine.Removed {
		return nil
	}
	if !w.machine.RunAgain {
		w.host.Metrics.Restarted(IsStatic(w.machine.Pod))
	}
	w.machine.RunAgain = true
	return w.ends.done
}

// Terminate terminates a pod by a decision of the kubelet, such as an eviction. It does nothing if the pod is
// unknown or already terminating.
func (r *Registry) Terminate(uid types.UID, v *Verdict) {
	w := r.worker(uid)
	if w != nil {
		w.setVerdict(v)
	}
}

// active returns the worker's pod, or nothing if it has terminated or is removed from its source:
// the scheduler assigns the resources of a force-deleted pod immediately to another pod. If a
// resize is pending, the pod has its actual resources.
func (w *worker) active() []*v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.machine
	if m.Stage == podmachine.Stopped || m.Removed {
		return nil
	}
	if s := m.Resize.State; s != nil && s.Kind == v1.PodResizePending {
		return []*v1.Pod{m.Resize.Actual(m.Pod)}
	}
	return []*v1.Pod{m.Pod}
}
