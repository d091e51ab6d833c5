package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/images"
	"hyperkube/components/kubelet/podstate"
	"hyperkube/components/kubelet/volume"
)

// Manager runs all pods of the node. Its methods are safe for several
// goroutines.
type Manager struct {
	host *Host
	wait sync.WaitGroup
	// Admit, if not nil, is asked before a pod is run for the first time; a
	// verdict refuses it. It is called with no lock held.
	Admit func(pod *v1.Pod, others []*v1.Pod) *Verdict

	mu      sync.Mutex      // guards what follows
	spawn   func(w *worker) // runs a worker; nil when Run does not run
	open    bool            // the runtime's events are followed
	workers map[types.UID]*worker
	waiters map[string][]chan struct{} // by container ID, closed when it has ended
}

// NewManager makes a Manager. Run must be called before anything else is.
func NewManager(h *Host) *Manager {
	m := &Manager{host: h, workers: map[types.UID]*worker{}, waiters: map[string][]chan struct{}{}}
	h.Fits, h.Resized = m.fits, m.RetryResizes
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
			w.clean()
			close(w.done)
			// There is more room for those who wait for some.
			m.RetryResizes()
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
			pod.Status.Phase != v1.PodFailed && pod.Status.Phase != v1.PodSucceeded
		if admit {
			for _, o := range m.workers {
				others = append(others, o.active()...)
			}
		}
		w = newWorker(m.host, pod)
		m.workers[pod.UID] = w
		m.mu.Unlock()
		if admit {
			if v := m.Admit(pod, others); v != nil {
				v.Rejected = true
				w.setVerdict(v)
				m.host.event(pod, "", true, v.Reason, v.Message)
			}
		}
		m.start(w)
		return
	}
	m.mu.Unlock()
	w.setPod(pod)
}

// active returns the worker's pod unless it has ended.
func (w *worker) active() []*v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stage == stopped {
		return nil
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
	running := w.running
	w.running = true
	w.mu.Unlock()
	if running {
		return
	}
	m.wait.Add(1)
	go m.spawn(w)
}

// Changed makes the pod's worker look again, for a static pod's mirror has
// changed.
func (m *Manager) Changed(uid types.UID) {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
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
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
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
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
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
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[uid]; w != nil {
		return w.done
	}
	return nil
}

// Cleaned returns a channel that is closed once nothing of the pod runs and its
// volumes are gone; it is closed when there is no such pod.
func (m *Manager) Cleaned(uid types.UID) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[uid]; w != nil {
		return w.cleaned
	}
	none := make(chan struct{})
	close(none)
	return none
}

// Remove says that the pod is not wanted any more: it is stopped, and whatever
// is left of it removed.
func (m *Manager) Remove(uid types.UID) {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w != nil {
		w.setGone()
	}
}

// End ends a pod by the kubelet's own decision, such as an eviction.
func (m *Manager) End(uid types.UID, v *Verdict) {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w != nil {
		w.setVerdict(v)
	}
}

// Pods returns what is wanted, with the newest status.
func (m *Manager) Pods() []*v1.Pod {
	workers := m.all()
	out := make([]*v1.Pod, 0, len(workers))
	for _, w := range workers {
		w.mu.Lock()
		if !w.gone {
			pod := *w.pod
			if w.report.want.StartTime != nil {
				pod.Status = w.report.want
			}
			out = append(out, &pod)
		}
		w.mu.Unlock()
	}
	return out
}

// Active returns the pods that have not ended.
func (m *Manager) Active() []*v1.Pod {
	workers := m.all()
	var out []*v1.Pod
	for _, w := range workers {
		out = append(out, w.active()...)
	}
	return out
}

// ErrNoPod is returned for a pod or container that this node does not have.
var ErrNoPod = errors.New("not found on this node")

// missing is an ErrNoPod in upstream's words.
type missing string

func (m missing) Error() string { return string(m) }

// Is implements errors.Is.
func (missing) Is(target error) bool { return target == ErrNoPod }

// Container finds a container by pod and name: the newest attempt or, with
// previous, the one before. uid may be empty.
func (m *Manager) Container(namespace, name string, uid types.UID, container string, previous bool) (*v1.Pod, podstate.Container, error) {
	w := m.find(namespace, name, uid)
	if w == nil {
		return nil, podstate.Container{}, missing(fmt.Sprintf("pod %q does not exist", name))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c, _ := podstate.Find(w.pod, container); c == nil {
		return w.pod, podstate.Container{}, missing(fmt.Sprintf("container %q not found in pod %q", container, name))
	}
	st := w.obs.Latest(container)
	if previous {
		if st = w.obs.Previous(container); st == nil {
			return w.pod, podstate.Container{}, fmt.Errorf("previous terminated container %q in pod %q not found", container, name)
		}
	}
	if st == nil {
		reason := "ContainerCreating"
		if len(w.pod.Spec.InitContainers) > 0 {
			reason = "PodInitializing"
		}
		if s := w.slots[container].Waiting; s != nil {
			reason = s.Reason
		}
		switch reason {
		case images.ErrImagePull:
			reason = "image can't be pulled"
		case images.ImagePullBackOff:
			reason = "trying and failing to pull image"
		}
		return w.pod, podstate.Container{}, fmt.Errorf("container %q in pod %q is waiting to start: %s", container, name, reason)
	}
	return w.pod, *st, nil
}

// Sandbox returns the ID of the pod's running sandbox.
func (m *Manager) Sandbox(namespace, name string, uid types.UID) (string, error) {
	w := m.find(namespace, name, uid)
	if w == nil {
		return "", missing(fmt.Sprintf("pod %q does not exist", name))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	box := w.obs.Sandbox()
	if box == nil {
		return "", fmt.Errorf("pod %q is not running", name)
	}
	return box.ID, nil
}

func (m *Manager) find(namespace, name string, uid types.UID) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found *worker
	for _, w := range m.workers {
		w.mu.Lock()
		fits := w.pod.Namespace == namespace && w.pod.Name == name && (uid == "" || w.uid == uid || string(uid) == w.pod.Annotations[AnnotationHash])
		gone := w.gone
		w.mu.Unlock()
		if fits && (found == nil || !gone) {
			found = w
		}
	}
	return found
}

// Ended returns a channel that is closed once the container has ended.
func (m *Manager) Ended(ctx context.Context, id string) <-chan struct{} {
	ch := make(chan struct{})
	m.mu.Lock()
	m.waiters[id] = append(m.waiters[id], ch)
	m.mu.Unlock()
	// It may have ended before anyone waited.
	if c, err := m.host.CRI.Container(ctx, id); err != nil || c.State == podstate.Exited {
		m.tellEnded(id)
	}
	return ch
}

// Forget takes back an Ended whose answer is not needed any more.
func (m *Manager) Forget(id string, ch <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.waiters[id]
	for i := range list {
		if list[i] == ch {
			m.waiters[id] = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(m.waiters[id]) == 0 {
		delete(m.waiters, id)
	}
}

func (m *Manager) tellEnded(id string) {
	m.mu.Lock()
	list := m.waiters[id]
	delete(m.waiters, id)
	m.mu.Unlock()
	for _, ch := range list {
		close(ch)
	}
}

// follow dispatches the runtime's events until ctx ends. A runtime without
// events is asked for its containers every second.
func (m *Manager) follow(ctx context.Context) {
	pause := 20 * time.Millisecond
	first := true
	for ctx.Err() == nil {
		err := m.stream(ctx, func() {
			pause = 20 * time.Millisecond
			m.relistAll()
			if first {
				m.startAll()
				first = false
			}
		})
		if ctx.Err() != nil {
			return
		}
		if cri.IsUnimplemented(err) {
			m.host.Log.Info("the runtime has no event stream: asking it every second instead")
			if first {
				m.startAll()
			}
			m.poll(ctx)
			return
		}
		m.host.Log.Info("the runtime's event stream ended, opening it again", "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, time.Second)
	}
}

// startAll starts the workers that were set before Run.
func (m *Manager) startAll() {
	m.mu.Lock()
	m.open = true
	workers := slices.Collect(maps.Values(m.workers))
	m.mu.Unlock()
	for _, w := range workers {
		m.start(w)
	}
}

// stream reads the runtime's events until the stream ends; opened is called
// once it is open.
func (m *Manager) stream(ctx context.Context, opened func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := m.host.CRI.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	opened()
	// No runtime says when it has begun to listen, so what happens until then
	// is caught by asking once more.
	once := time.AfterFunc(time.Second, m.relistAll)
	defer once.Stop()
	for {
		ev, err := events.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("closed by the runtime")
		}
		if err != nil {
			return err
		}
		m.dispatch(ev)
	}
}

func (m *Manager) dispatch(ev *runtimeapi.ContainerEventResponse) {
	if ev.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT ||
		ev.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
		m.tellEnded(ev.ContainerId)
	}
	uid := types.UID(ev.GetPodSandboxStatus().GetMetadata().GetUid())
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w != nil {
		w.runtimeEvent(ev.ContainerId, ev.ContainerEventType)
	}
}

func (m *Manager) relistAll() {
	for _, w := range m.all() {
		w.relist()
	}
}

// poll stands in for events.
func (m *Manager) poll(ctx context.Context) {
	type seen struct {
		uid   string
		state int32
	}
	before := map[string]seen{}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		now, err := m.list(ctx, func(id, uid string, state int32) any { return seen{uid, state} })
		if err != nil {
			m.host.Log.Warn("asking the runtime for its containers failed", "error", err)
		} else {
			dirty := map[string]bool{}
			after := make(map[string]seen, len(now))
			for id, v := range now {
				s := v.(seen)
				after[id] = s
				if old, ok := before[id]; !ok || old != s {
					dirty[s.uid] = true
				}
				if s.state == int32(runtimeapi.ContainerState_CONTAINER_EXITED) {
					m.tellEnded(id)
				}
			}
			for id, old := range before {
				if _, ok := after[id]; !ok {
					dirty[old.uid] = true
					m.tellEnded(id)
				}
			}
			before = after
			for uid := range dirty {
				m.mu.Lock()
				w := m.workers[types.UID(uid)]
				m.mu.Unlock()
				if w != nil {
					w.relist()
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (m *Manager) list(ctx context.Context, make_ func(id, uid string, state int32) any) (map[string]any, error) {
	out := map[string]any{}
	boxes, err := m.host.CRI.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	for _, b := range boxes.Items {
		// Sandboxes count states the other way round, and apart.
		out[b.Id] = make_(b.Id, b.Labels[cri.LabelPodUID], 100+int32(b.State))
	}
	containers, err := m.host.CRI.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	for _, c := range containers.Containers {
		out[c.Id] = make_(c.Id, c.Labels[cri.LabelPodUID], int32(c.State))
	}
	return out, nil
}

// Orphans ends whatever the runtime or the disk has of pods that nobody wants.
// It is called once all sources have told their pods.
func (m *Manager) Orphans(ctx context.Context) error {
	known := map[types.UID]bool{}
	m.mu.Lock()
	for uid := range m.workers {
		known[uid] = true
	}
	m.mu.Unlock()
	orphans := map[types.UID]*v1.Pod{}
	boxes, err := m.host.CRI.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("looking for pods that nobody wants: %w", err)
	}
	for _, b := range boxes.Items {
		uid := types.UID(b.Labels[cri.LabelPodUID])
		if uid == "" || known[uid] {
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
	for _, uid := range dirs {
		if !known[uid] && orphans[uid] == nil {
			if err := m.host.Volumes.TearDown(ctx, uid); err != nil {
				// A driver may not be there yet: it is tried again as for others.
				m.host.Log.Info("removing the directory of a pod that is gone failed, trying again", "uid", uid, "error", err)
				pod := &v1.Pod{}
				pod.UID = uid
				orphans[uid] = pod
			}
		}
	}
	for uid, pod := range orphans {
		m.host.Log.Info("ending a pod that nobody wants", "pod", pod.Namespace+"/"+pod.Name)
		w := newWorker(m.host, pod)
		w.gone = true
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

// Healthy tells what is wrong, if anything: a manager that does not follow its
// runtime is not healthy.
func (m *Manager) Healthy() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.open {
		return errors.New("the container runtime has not answered yet")
	}
	return nil
}
