package pods

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/internal/pod/podutil"
)

// Manager runs all pods of the node. Its methods are safe for concurrent use.
type Manager struct {
	host *Host
	wait sync.WaitGroup
	// Admit is called before a pod runs for the first time; a non-nil Verdict rejects the pod. It
	// is called without locks held. It may be nil.
	Admit func(pod *v1.Pod, others []*v1.Pod) *Verdict

	balance burstableWeight
	gcMu    sync.Mutex // held by Tidy

	mu         sync.Mutex      // guards the following fields
	spawn      func(w *worker) // runs a worker; nil while Run is not running
	streamOpen bool            // the runtime's event stream is open
	workers    map[types.UID]*worker
	waiters    map[string][]chan struct{} // by container ID, closed when the container has exited
}

// NewManager creates a Manager. Run must be called before other methods.
func NewManager(h *Host) *Manager {
	m := &Manager{host: h, workers: map[types.UID]*worker{}, waiters: map[string][]chan struct{}{}}
	h.Resizing.Fits, h.Hooks.updateWeights = m.checkFit, m.updateWeights
	h.Resizing.Resized = func() { m.retryResizes("pod_resized") }
	return m
}

// Run runs the pods until ctx is done, and returns when all its goroutines have returned.
// Containers continue to run.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	m.spawn = func(w *worker) {
		defer m.wait.Done()
		w.run(ctx)
		if ctx.Err() == nil {
			m.mu.Lock()
			delete(m.workers, w.uid)
			m.mu.Unlock()
			if removed := w.host.Hooks.Removed; removed != nil {
				w.mu.Lock()
				pod := w.pod
				w.mu.Unlock()
				removed(pod)
			}
			w.clean()
			w.emptied()
			close(w.done)
			// Pending resizes may fit now.
			m.retryResizes("pods_removed")
		}
	}
	m.mu.Unlock()
	m.watchRuntime(ctx)
	m.mu.Lock()
	m.spawn = nil
	m.mu.Unlock()
	m.wait.Wait()
	return nil
}

// Set adds a pod to the desired pods, or updates it.
func (m *Manager) Set(pod *v1.Pod) {
	m.mu.Lock()
	w := m.workers[pod.UID]
	if w == nil {
		var others []*v1.Pod
		admit := m.Admit != nil && pod.DeletionTimestamp == nil && pod.Status.StartTime == nil &&
			!podutil.Terminal(pod)
		if admit {
			for _, o := range m.workers {
				others = append(others, o.active()...)
			}
		}
		w = newWorker(m.host, pod)
		w.admitting = admit
		m.workers[pod.UID] = w
		m.mu.Unlock()
		var refused *Verdict
		if admit {
			if refused = m.Admit(pod, others); refused != nil {
				refused.Rejected = true
				w.setVerdict(refused)
				m.host.event(pod, "", true, refused.Reason, refused.Message)
				m.host.Metrics.Rejected(refused.Reason)
			}
			w.update(func() { w.admitting = false })
		}
		if refused == nil && pod.DeletionTimestamp == nil && !podutil.Terminal(pod) {
			m.host.Metrics.Admitted(pod, QOS(pod))
		}
		m.updateWeights()
		m.start(w)
		return
	}
	m.mu.Unlock()
	w.setPod(pod)
}

// active returns the worker's pod, or nothing if it has terminated or is removed from its source:
// the scheduler assigns the resources of a force-deleted pod immediately to another pod. If a
// resize is pending, the pod has its actual resources.
func (w *worker) active() []*v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stage == stopped || w.removed {
		return nil
	}
	if w.resize != nil && w.resize.kind == v1.PodResizePending {
		return []*v1.Pod{w.actual()}
	}
	return []*v1.Pod{w.pod}
}

func (m *Manager) start(w *worker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.spawn == nil || !m.streamOpen {
		// startAll starts the worker when the runtime is available.
		return
	}
	w.mu.Lock()
	waits := w.running || w.admitting
	w.running = w.running || !waits
	w.mu.Unlock()
	if waits {
		return
	}
	m.wait.Add(1)
	go m.spawn(w)
}

// Changed makes the pod's worker update the status, because the mirror pod of a static pod has
// changed.
func (m *Manager) Changed(uid types.UID) {
	w := m.worker(uid)
	if w != nil {
		w.update(func() { w.report.halted = false })
	}
}

// RetryVolumes immediately retries failed setups and teardowns of volumes, because the cause of the
// failures may have been removed.
func (m *Manager) RetryVolumes() {
	m.retry(func(w *worker) bool {
		waits := w.op == nil && !w.mountAt.IsZero()
		if waits {
			w.mountAt = time.Time{}
		}
		return waits
	})
}

// retry wakes the workers for which ready returns true. ready is called with the worker's lock
// held.
func (m *Manager) retry(ready func(*worker) bool) {
	for _, w := range m.all() {
		w.mu.Lock()
		waits := ready(w)
		w.mu.Unlock()
		if waits {
			w.kick()
		}
	}
}

// worker returns the worker of a pod, or nil.
func (m *Manager) worker(uid types.UID) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.workers[uid]
}

// all returns all workers, for callers that must not hold mu while they access the workers.
func (m *Manager) all() []*worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.workers))
}

// Refresh updates the volumes of the pods for which uses returns true.
func (m *Manager) Refresh(uses func(*v1.Pod) bool) {
	for _, w := range m.all() {
		w.mu.Lock()
		pod := w.pod
		w.mu.Unlock()
		if uses(pod) {
			w.objectsChanged()
		}
	}
}

// Volumes returns a pod's volumes by name, or nil before they are set up. The result is shared and
// must not be modified.
func (m *Manager) Volumes(uid types.UID) map[string]volume.Result {
	w := m.worker(uid)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stage != syncing || !w.mounted {
		return nil
	}
	return w.volumes
}

// Cgroup returns a pod's cgroup as a path from the root of the hierarchy, or "" if there is no such
// pod.
func (m *Manager) Cgroup(uid types.UID) string {
	w := m.worker(uid)
	if w == nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return m.host.cgroupOf(w.pod)
}

// Done returns a channel that is closed when nothing is left of the pod, or nil if there is no such
// pod.
func (m *Manager) Done(uid types.UID) <-chan struct{} {
	if w := m.worker(uid); w != nil {
		return w.done
	}
	return nil
}

// Cleaned returns a channel that is closed when nothing of the pod runs and its volumes are
// removed, or if there is no such pod.
func (m *Manager) Cleaned(uid types.UID) <-chan struct{} {
	if w := m.worker(uid); w != nil {
		return w.cleaned
	}
	none := make(chan struct{})
	close(none)
	return none
}

// Remove removes a pod from the desired pods: it is terminated and everything of it is removed.
func (m *Manager) Remove(uid types.UID) {
	w := m.worker(uid)
	if w != nil {
		w.setRemoved()
	}
}

// RestartRemoved requests that a pod that is being removed is run again afterwards, as happens when the
// manifest of a static pod is restored. Its exited containers are kept and count as previous
// attempts. The caller must call Set when the returned channel is closed. The channel is nil if the
// pod is not being removed.
func (m *Manager) RestartRemoved(uid types.UID) <-chan struct{} {
	w := m.worker(uid)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.removed {
		return nil
	}
	if !w.runAgain {
		m.host.Metrics.Restarted(IsStatic(w.pod))
	}
	w.runAgain = true
	return w.done
}

// Terminate terminates a pod by a decision of the kubelet, such as an eviction.
func (m *Manager) Terminate(uid types.UID, v *Verdict) {
	w := m.worker(uid)
	if w != nil {
		w.setVerdict(v)
	}
}

// TerminateOrphans terminates pods that exist in the runtime or on disk but are not desired, and removes
// their volumes. It is called when all sources have delivered their pods.
func (m *Manager) TerminateOrphans(ctx context.Context) error {
	// Called after containers or directories were listed: a worker is added before anything of its
	// pod is created.
	known := func(uid types.UID) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.workers[uid] != nil
	}
	orphans := map[types.UID]*v1.Pod{}
	boxes, err := m.host.CRI.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("listing orphaned pods: %w", err)
	}
	for _, b := range boxes.Items {
		uid := types.UID(b.Labels[cri.LabelPodUID])
		if uid == "" || known(uid) {
			continue
		}
		pod := &v1.Pod{}
		pod.UID, pod.Name, pod.Namespace = uid, b.Labels[cri.LabelPodName], b.Labels[cri.LabelPodNamespace]
		pod.Annotations = b.Annotations
		orphans[uid] = pod
	}
	dirs, err := m.host.Volumes.UIDs()
	if err != nil {
		return err
	}
	cleaned, failed := 0, 0
	for _, uid := range dirs {
		found, err := m.host.Volumes.CountVolumes(uid)
		if err != nil {
			m.host.Log.Warn("counting volume directories of pod failed", "uid", uid, "err", err)
			m.host.Metrics.VolumesFound(found, 1)
		} else {
			m.host.Metrics.VolumesFound(found, 0)
		}
		if !known(uid) && orphans[uid] == nil {
			cleaned++
			err := m.host.Volumes.TearDown(ctx, uid)
			m.host.Metrics.OrphanVolumesCleaned(found, err)
			if err != nil {
				cleaned, failed = cleaned-1, failed+1
				// The volume's driver may not be registered yet, so a worker retries it.
				m.host.Log.Info("removing the directory of a deleted pod failed, will retry", "uid", uid, "err", err)
				pod := &v1.Pod{}
				pod.UID = uid
				orphans[uid] = pod
			}
		}
	}
	m.host.Metrics.OrphansCleaned(cleaned, failed)
	for uid, pod := range orphans {
		m.host.Log.Info("terminating orphaned pod", "pod", pod.Namespace+"/"+pod.Name)
		w := newWorker(m.host, pod)
		w.removed, w.orphan = true, true
		if pod.Name != "" {
			m.host.Metrics.Orphaned()
		}
		m.mu.Lock()
		if m.workers[uid] != nil {
			m.mu.Unlock()
			continue
		}
		m.workers[uid] = w
		m.mu.Unlock()
		m.start(w)
	}
	return nil
}
