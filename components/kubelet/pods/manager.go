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
	"hyperkube/components/kubelet/volume"
	"hyperkube/internal/podfacts"
)

// Manager runs all pods of the node. Its methods are safe for several
// goroutines.
type Manager struct {
	host *Host
	wait sync.WaitGroup
	// Admit, if not nil, is asked before a pod is run for the first time; a
	// verdict refuses it. It is called with no lock held.
	Admit func(pod *v1.Pod, others []*v1.Pod) *Verdict

	balance balance
	tidying sync.Mutex // held by Tidy

	mu      sync.Mutex      // guards what follows
	spawn   func(w *worker) // runs a worker; nil when Run does not run
	open    bool            // the runtime's events are followed
	workers map[types.UID]*worker
	waiters map[string][]chan struct{} // by container ID, closed when it has ended
}

// NewManager makes a Manager. Run must be called before anything else is.
func NewManager(h *Host) *Manager {
	m := &Manager{host: h, workers: map[types.UID]*worker{}, waiters: map[string][]chan struct{}{}}
	h.Resizing.Fits, h.Hooks.weigh = m.fits, m.weigh
	h.Resizing.Resized = func() { m.retryResizes("pod_resized") }
	return m
}

// Run keeps pods until ctx ends, following what the runtime reports, and
// returns when all goroutines have ended. Containers go on running.
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
			if tell := w.host.Hooks.Gone; tell != nil {
				w.mu.Lock()
				pod := w.pod
				w.mu.Unlock()
				tell(pod)
			}
			w.clean()
			w.emptied()
			close(w.done)
			// There is more room for those who wait for some.
			m.retryResizes("pods_removed")
		}
	}
	m.mu.Unlock()
	m.follow(ctx)
	m.mu.Lock()
	m.spawn = nil
	m.mu.Unlock()
	m.wait.Wait()
	return nil
}

// Set says that pod is wanted on this node, as it now is.
func (m *Manager) Set(pod *v1.Pod) {
	m.mu.Lock()
	w := m.workers[pod.UID]
	if w == nil {
		var others []*v1.Pod
		admit := m.Admit != nil && pod.DeletionTimestamp == nil && pod.Status.StartTime == nil &&
			!podfacts.Terminal(pod)
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
		if refused == nil && pod.DeletionTimestamp == nil && !podfacts.Terminal(pod) {
			m.host.Metrics.Admitted(pod, QOS(pod))
		}
		m.weigh()
		m.start(w)
		return
	}
	m.mu.Unlock()
	w.setPod(pod)
}

// active returns the worker's pod, with what it has and not what a resize that waits would
// give it, unless it has ended, or is deleted: the scheduler gives the place of one that was
// deleted by force to another at once.
func (w *worker) active() []*v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stage == stopped || w.gone {
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
	if m.spawn == nil || !m.open {
		// follow starts it once the runtime is there.
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

// Changed makes the pod's worker look again, for a static pod's mirror has
// changed.
func (m *Manager) Changed(uid types.UID) {
	w := m.worker(uid)
	if w != nil {
		w.update(func() { w.report.halted = false })
	}
}

// RetryVolumes makes the pods whose volumes could not be set up or taken back
// try again at once, for something has changed that may have been in the way.
func (m *Manager) RetryVolumes() {
	m.retry(func(w *worker) bool {
		waits := w.op == nil && !w.mountAt.IsZero()
		if waits {
			w.mountAt = time.Time{}
		}
		return waits
	})
}

// retry wakes the workers that ready, which is called with the worker's lock held,
// has put to trying again.
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

// worker returns that of a pod, nil when there is no such pod.
func (m *Manager) worker(uid types.UID) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.workers[uid]
}

// all returns the workers that there are now, for who must not hold mu while it
// looks at them.
func (m *Manager) all() []*worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.workers))
}

// Refresh makes the pods that uses is true for bring their volumes up to date.
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

// Volumes returns what a pod's volumes are, by name; nil before they are set up.
// It is shared and must not be changed.
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

// Cgroup is a pod's cgroup as a path from the root of the hierarchy; empty when
// there is no such pod.
func (m *Manager) Cgroup(uid types.UID) string {
	w := m.worker(uid)
	if w == nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return m.host.cgroupOf(w.pod)
}

// Done returns a channel that is closed once nothing is left of the pod; nil
// when there is no such pod.
func (m *Manager) Done(uid types.UID) <-chan struct{} {
	if w := m.worker(uid); w != nil {
		return w.done
	}
	return nil
}

// Cleaned returns a channel that is closed once nothing of the pod runs and its
// volumes are gone; it is closed when there is no such pod.
func (m *Manager) Cleaned(uid types.UID) <-chan struct{} {
	if w := m.worker(uid); w != nil {
		return w.cleaned
	}
	none := make(chan struct{})
	close(none)
	return none
}

// Remove says that the pod is not wanted any more: it is stopped, and whatever
// is left of it removed.
func (m *Manager) Remove(uid types.UID) {
	w := m.worker(uid)
	if w != nil {
		w.setGone()
	}
}

// Renew says that a pod that is being removed shall be run again afterwards, as
// static pods are whose manifest comes back: its containers that have ended are left
// where they are, and count as former ones. Set is to be called when the returned
// channel is closed; it is nil when the pod is not being removed.
func (m *Manager) Renew(uid types.UID) <-chan struct{} {
	w := m.worker(uid)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.gone {
		return nil
	}
	if !w.renewed {
		m.host.Metrics.Restarted(IsStatic(w.pod))
	}
	w.renewed = true
	return w.done
}

// End ends a pod by the kubelet's own decision, such as an eviction.
func (m *Manager) End(uid types.UID, v *Verdict) {
	w := m.worker(uid)
	if w != nil {
		w.setVerdict(v)
	}
}

// Orphans ends whatever the runtime or the disk has of pods that nobody wants.
// It is called once all sources have told their pods.
func (m *Manager) Orphans(ctx context.Context) error {
	// Asked after what is there was listed: a pod is known before anything is made
	// for it.
	known := func(uid types.UID) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.workers[uid] != nil
	}
	orphans := map[types.UID]*v1.Pod{}
	boxes, err := m.host.CRI.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("looking for pods that nobody wants: %w", err)
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
		found, err := m.host.Volumes.Found(uid)
		if err != nil {
			m.host.Log.Warn("looking for the volumes of a pod failed", "uid", uid, "error", err)
			m.host.Metrics.VolumesFound(found, 1)
		} else {
			m.host.Metrics.VolumesFound(found, 0)
		}
		if !known(uid) && orphans[uid] == nil {
			cleaned++
			err := m.host.Volumes.TearDown(ctx, uid)
			m.host.Metrics.VolumesSwept(found, err)
			if err != nil {
				cleaned, failed = cleaned-1, failed+1
				// A driver may not be there yet: it is tried again as for others.
				m.host.Log.Info("removing the directory of a pod that is gone failed, trying again", "uid", uid, "error", err)
				pod := &v1.Pod{}
				pod.UID = uid
				orphans[uid] = pod
			}
		}
	}
	m.host.Metrics.Swept(cleaned, failed)
	for uid, pod := range orphans {
		m.host.Log.Info("ending a pod that nobody wants", "pod", pod.Namespace+"/"+pod.Name)
		w := newWorker(m.host, pod)
		w.gone, w.orphan = true, true
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
