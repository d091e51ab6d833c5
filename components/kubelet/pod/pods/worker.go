package pods

import (
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/pod/probe"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/internal/pod/podutil"
)

// Verdict is a decision of the kubelet to terminate a pod, for example to evict it.
type Verdict = podmachine.Verdict

// worker runs one pod. It observes the pod in the runtime, executes the decisions of the pod's state machine
// (podmachine.Machine), and reports the results to it. Its loop does not block: long-running work is done in
// separate goroutines, at most one operation on the whole pod, and one for each container that is being stopped.
type worker struct {
	host *host
	uid  types.UID
	log  *slog.Logger
	wake chan struct{} // has capacity 1
	ends milestones
	wait sync.WaitGroup // for all goroutines of the worker

	mu      sync.Mutex // guards all fields below
	machine *podmachine.Machine
	fresh   freshness
	// cancelOperation cancels the operation in progress; nil if there is none.
	cancelOperation context.CancelFunc
	stops           map[string]*stopping    // by container ID
	probes          map[string]*probe.Group // by container ID
	volumes         volumeResults
	report          reporter
	timing          timing
	// orphan: the pod was never in a source. It is known only from the runtime or the disk.
	orphan    bool
	admitting bool // admission is not complete, so the loop is not started
	running   bool // the loop was started
}

// milestones are the channels that a worker closes as the termination of its pod proceeds. Preemption, shutdown and
// eviction wait for them.
type milestones struct {
	// cleaned is closed by clean when no process of the pod runs and its volumes are removed.
	cleaned chan struct{}
	clean   func()
	// emptied is closed by empty when the containers and logs of the pod are removed.
	emptied chan struct{}
	empty   func()
	// done is closed when the pod's worker has removed everything of the pod.
	done chan struct{}
}

func newMilestones() milestones {
	m := milestones{cleaned: make(chan struct{}), emptied: make(chan struct{}), done: make(chan struct{})}
	m.clean = sync.OnceFunc(func() { close(m.cleaned) })
	m.empty = sync.OnceFunc(func() { close(m.emptied) })
	return m
}

// volumeResults are the results of the setup of the pod's volumes, by name of the volume.
type volumeResults struct {
	byName map[string]volume.Result
	// failingSince is since when the setup of volumes has failed; zero if it has not.
	failingSince time.Time
}

// newWorker returns a worker of the pod, which does not run yet.
func newWorker(h *host, pod *v1.Pod) *worker {
	options := h.options
	options.HasObject = h.Kube != nil && !IsStatic(pod)
	w := &worker{
		host: h, uid: pod.UID,
		log:  h.Log.With("pod", pod.Namespace+"/"+pod.Name),
		wake: make(chan struct{}, 1), ends: newMilestones(),
		machine: podmachine.New(pod, options),
		fresh:   freshness{all: true, ids: map[string]bool{}},
		stops:   map[string]*stopping{},
		probes:  map[string]*probe.Group{},
		timing:  newTiming(h.Metrics, pod),
	}
	w.report = newReporter(w, pod)
	return w
}

// kick wakes the loop of the worker, so that it executes the next step. It does not block, and the caller may hold
// mu.
func (w *worker) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// update calls f, which changes the worker's state, with mu held, and then wakes the loop of the worker, so that it
// acts on the change.
func (w *worker) update(f func()) {
	w.mu.Lock()
	f()
	w.mu.Unlock()
	w.kick()
}

// pod returns the desired pod, as last received from its source.
func (w *worker) pod() *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.machine.Pod
}

// setPod updates the desired pod, because its source has reported a change.
func (w *worker) setPod(pod *v1.Pod) {
	w.update(func() {
		if old := w.machine.Pod; old.Generation != pod.Generation {
			w.host.Metrics.ResizesRequested(old, pod)
		}
		w.machine.SetPod(pod)
		w.report.observe(pod)
		w.timing.allStarted(pod)
	})
}

// setVerdict terminates the pod by the kubelet's decision v, unless the pod is already terminating.
func (w *worker) setVerdict(v *Verdict) { w.update(func() { w.machine.Terminate(v, time.Now()) }) }

// objectsChanged updates the volumes of the pod and retries failed starts. It is called when a ConfigMap, a
// Secret or another object that the pod refers to has changed.
func (w *worker) objectsChanged() { w.update(w.machine.ObjectsChanged) }

// run runs the pod until it has terminated and everything of it is removed, or ctx is done. In the latter
// case its containers continue to run.
func (w *worker) run(ctx context.Context) {
	defer w.close()
	w.host.Metrics.WorkerStarted(w.pod(), time.Since(w.timing.seen))
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wakeAt, done := w.step(ctx)
		if done {
			return
		}
		pause := 24 * time.Hour
		if !wakeAt.IsZero() {
			pause = max(time.Until(wakeAt), 0)
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// close cancels the goroutines of the worker and waits until they have returned.
func (w *worker) close() {
	w.mu.Lock()
	if w.cancelOperation != nil {
		w.cancelOperation()
	}
	for _, s := range w.stops {
		s.cancel()
	}
	groups := w.probes
	w.probes = map[string]*probe.Group{}
	w.mu.Unlock()
	for _, g := range groups {
		g.Stop()
	}
	w.host.Objects.SetReferences(w.uid, nil, nil)
	w.wait.Wait()
}

// step reads from the runtime what may have changed, lets the pod's state machine decide what to do, and executes
// the decision. wakeAt is when step must be called again even if nothing changes; zero means never. done is true if
// everything of the pod is removed.
func (w *worker) step(ctx context.Context) (wakeAt time.Time, done bool) {
	if err := w.refreshTracked(ctx); err != nil {
		if ctx.Err() != nil {
			return time.Time{}, false
		}
		w.log.Warn("getting state of pod from the container runtime failed; containers of the pod are not started, stopped or reported until a retry succeeds, retrying in a second", "podUID", w.uid, "err", err)
		if !cri.IsUnavailable(err) {
			w.host.event(w.pod(), "", true, "FailedSync", "error determining status: "+cri.Message(err))
		}
		return time.Now().Add(time.Second), false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now, m := time.Now(), w.machine
	if !m.Adopted && len(objectcache.Of(m.Pod)) > 0 {
		w.host.Objects.SetReferences(w.uid, objectcache.Of(m.Pod), w.objectsChanged)
	}
	if !m.WillTerminate() {
		w.syncProbes()
	}
	stage := m.Stage
	d := m.Step(podmachine.Input{
		Now: now, Health: w.health(), Last: w.report.last, StartTime: w.report.startTime(), StatusSettled: w.report.settled(),
	})
	if m.Stage != podmachine.Syncing {
		w.timing.terminating(stage == podmachine.Stopped, now)
	}
	w.execute(ctx, &d)
	if d.Report {
		w.report.update(ctx, now)
	}
	return d.WakeAt, d.Done
}

// execute executes the decision d of the pod's state machine, except for the status report. Long-running work is
// started in goroutines. The caller must hold mu.
func (w *worker) execute(ctx context.Context, d *podmachine.Decision) {
	for _, e := range d.Events {
		w.host.event(w.machine.Pod, e.Container, e.Warning, e.Reason, e.Message)
	}
	if d.CancelOperation && w.cancelOperation != nil {
		w.cancelOperation()
	}
	if d.StopProbes {
		w.stopProbes()
	}
	for _, k := range d.Kill {
		w.startStop(ctx, k)
	}
	for _, id := range d.AllowStop {
		if s := w.stops[id]; s != nil {
			s.allow()
		}
	}
	if d.Operation.Kind != podmachine.None {
		w.startOperation(ctx, d.Operation)
	}
	if d.Again {
		w.kick()
	}
}

// health returns the latest probe results of the pod's containers by container ID. The caller must hold mu.
func (w *worker) health() map[string]podstate.Health {
	health := make(map[string]podstate.Health, len(w.probes))
	for id, g := range w.probes {
		health[id] = g.Health()
	}
	return health
}

// syncProbes starts and stops probes so that exactly the running containers are probed, except those whose
// postStart hook is running or that are being stopped. The caller must hold mu.
func (w *worker) syncProbes() {
	running := map[string]bool{}
	containers := &w.machine.Containers
	for i := range containers.Observed.Containers {
		st := &containers.Observed.Containers[i]
		if st.State != podstate.Running {
			continue
		}
		running[st.ID] = true
		if _, ok := w.probes[st.ID]; ok || containers.HookRunning(st.ID) || containers.Slots[st.Name].Killing {
			continue
		}
		if g := w.startProbes(st); g != nil {
			w.probes[st.ID] = g
		}
	}
	for id, g := range w.probes {
		if !running[id] {
			delete(w.probes, id)
			go g.Stop()
		}
	}
}

// startProbes starts the probes of a running container. It returns nil if the container has none or is an init
// container that is not a sidecar. Until the first probe after a restart of the kubelet, the container counts as
// started and ready if the pod's status in the API says so. The caller must hold mu.
func (w *worker) startProbes(st *podstate.Container) *probe.Group {
	pod, name := w.machine.Pod, st.Name
	c, kind := podstate.Find(pod, name)
	if c == nil || kind == podstate.Ephemeral || (kind == podstate.Init && !podutil.Sidecar(c)) {
		return nil
	}
	if c.StartupProbe == nil && c.LivenessProbe == nil && c.ReadinessProbe == nil {
		return nil
	}
	o := probe.Options{
		Target:  probe.Target{Pod: pod, Container: c, ContainerID: st.ID, PodIP: w.podIP()},
		Started: st.StartedAt,
		Changed: w.kick,
		Event: func(warning bool, reason, message string) {
			w.host.event(pod, name, warning, reason, message)
		},
	}
	if known := podstate.StatusOf(w.report.last, name); known != nil && known.ContainerID == w.host.Platform.RuntimeName()+"://"+st.ID {
		o.KnownStarted = ptr.Deref(known.Started, false)
		o.KnownReady = known.Ready
	}
	return w.host.Prober.Start(o)
}

// stopProbes stops the startup and liveness probes of a terminating pod, and all probes of containers
// that do not run. The caller must hold mu.
func (w *worker) stopProbes() {
	for id, g := range w.probes {
		g.StopStartupAndLiveness()
		if st := w.machine.Containers.Observed.ByID(id); st == nil || st.State != podstate.Running {
			delete(w.probes, id)
			go g.Stop()
		}
	}
}

// ips returns the pod's IP addresses: those of the node if it uses the host network, otherwise those of its
// ready sandbox, or nil if it has none. The caller must hold mu.
func (w *worker) ips() []string {
	if w.machine.Pod.Spec.HostNetwork {
		return w.host.Node.IPs()
	}
	if s := w.machine.Containers.Observed.Sandbox(); s != nil {
		return s.IPs
	}
	return nil
}

// podIP returns the primary IP address of the pod, or "". The caller must hold mu.
func (w *worker) podIP() string {
	if ips := w.ips(); len(ips) > 0 {
		return ips[0]
	}
	return ""
}

// runtimeEvent records that an event of the runtime about the container or sandbox id was received, and wakes
// the worker if it must read the state.
func (w *worker) runtimeEvent(id string, kind runtimeapi.ContainerEventType) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fresh.handle(id, kind, &w.machine.Containers.Observed, w.machine.Operation != podmachine.None) {
		w.kick()
	}
}

// relist makes the worker read the state of all containers and sandboxes of the pod from the runtime.
func (w *worker) relist() { w.update(func() { w.fresh.all = true }) }
