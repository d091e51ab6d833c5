package pods

import (
	"context"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/internal/pod/podutil"
)

// Manager runs all pods of the node. Its methods are safe for concurrent use.
type Manager struct {
	host  *host
	exits exitWaiters
	wait  sync.WaitGroup // for the workers

	mu         sync.Mutex      // guards the following fields
	spawn      func(w *worker) // runs a worker; nil while Run is not running
	streamOpen bool            // the runtime's event stream is open
}

// NewManager returns a Manager that adds pods to cfg.Registry. It runs them while Run is running.
func NewManager(cfg Config) *Manager { return &Manager{host: newHost(cfg)} }

// Run runs the pods until ctx is done, and returns nil when all its goroutines have returned. Containers
// continue to run, so that the next kubelet can adopt them.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	m.spawn = func(w *worker) {
		defer m.wait.Done()
		w.run(ctx)
		if ctx.Err() == nil {
			m.host.Registry.remove(w)
			if m.host.Observer != nil {
				m.host.Observer.Removed(w.pod())
			}
			w.ends.clean()
			w.ends.empty()
			close(w.ends.done)
			// Pending resizes may fit now.
			m.host.Registry.retryResizes("pods_removed")
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

// Set adds a pod to the desired pods, or updates it. A new pod is admitted first, which may block until ctx
// is done. A pod that is not admitted gets the phase Failed and is never started. Pods that have started
// before, are terminal or are being deleted are not admitted again.
func (m *Manager) Set(ctx context.Context, pod *v1.Pod) {
	if w := m.host.Registry.worker(pod.UID); w != nil {
		w.setPod(pod)
		return
	}
	w := newWorker(m.host, pod)
	w.admitting = m.host.Admitter != nil && pod.DeletionTimestamp == nil && pod.Status.StartTime == nil && !podutil.Terminal(pod)
	admit := w.admitting
	others, existing := m.host.Registry.add(w)
	if existing != nil {
		existing.setPod(pod)
		return
	}
	var refused *Verdict
	if admit {
		if refused = m.host.Admitter.Admit(ctx, pod, others); refused != nil {
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
	m.host.weights.update()
	m.start(w)
}

// start starts the worker w unless it is running or its pod is being admitted. Before the runtime's event
// stream is open it does nothing, because startAll starts the worker later.
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

// TerminateOrphans terminates pods that exist in the runtime or on disk but are not desired, and removes
// their volumes. It returns an error if pods or directories cannot be listed. It must not be called before
// all sources have delivered their pods, because missing pods would be terminated.
func (m *Manager) TerminateOrphans(ctx context.Context) error {
	// Called after containers or directories were listed: a worker is added before anything of its
	// pod is created.
	known := func(uid types.UID) bool { return m.host.Registry.worker(uid) != nil }
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
			m.host.Log.Warn("counting volumes of pod at the start of the kubelet failed; only the volume metrics of the kubelet are incomplete, no retry", "podUID", uid, "err", err)
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
				m.host.Log.Info("removing volumes and directory of a deleted pod failed; its volumes may stay mounted, retrying with back-off", "podUID", uid, "err", err)
				pod := &v1.Pod{}
				pod.UID = uid
				orphans[uid] = pod
			}
		}
	}
	m.host.Metrics.OrphansCleaned(cleaned, failed)
	for _, pod := range orphans {
		m.host.Log.Info("pod that was deleted while the kubelet was stopped found on the node; terminating its containers and removing its volumes", "pod", pod.Namespace+"/"+pod.Name, "podUID", pod.UID)
		w := newWorker(m.host, pod)
		w.machine.Remove()
		w.orphan = true
		if pod.Name != "" {
			m.host.Metrics.Orphaned()
		}
		if _, existing := m.host.Registry.add(w); existing == nil {
			m.start(w)
		}
	}
	return nil
}
