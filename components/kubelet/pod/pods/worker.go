package pods

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/pod/probe"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/internal/pod/podutil"
)

// Verdict is a decision of the kubelet to terminate a pod.
type Verdict struct {
	Reason, Message string
	// Rejected: the pod was not admitted. The Manager sets it.
	Rejected bool
	// Grace overrides the pod's grace period, in seconds, unless it is nil.
	Grace *int64
	// Discard: the containers and logs are removed as soon as the pod has terminated, to reclaim
	// disk space.
	Discard bool
	// Conditions are added to the pod's status.
	Conditions []v1.PodCondition
}

// worker runs one pod. Its loop makes all decisions. Long-running work is done in separate
// goroutines: at most one operation that starts things (op), and one for each container that is
// being stopped.
type worker struct {
	host *host
	uid  types.UID
	log  *slog.Logger
	wake chan struct{} // has capacity 1
	done chan struct{} // closed when nothing is left of the pod
	// cleaned is closed by clean when nothing of the pod runs and its volumes are removed.
	cleaned chan struct{}
	clean   func()
	// emptiedCh is closed by emptied when its containers and logs are removed.
	emptiedCh chan struct{}
	emptied   func()

	mu sync.Mutex // guards all fields below
	// pod is the desired pod, as last received from the source.
	pod *v1.Pod
	// removed: the pod was removed from its source.
	removed bool
	// orphan: the pod was never in a source. It is known only from the runtime or the disk.
	orphan bool
	// verdict is not nil if the kubelet terminates the pod. At overdueAt the termination is
	// reported as overdue; zero means never.
	verdict   *Verdict
	overdueAt time.Time
	// dirty: all state must be read from the runtime. dirtyIDs: the state of these containers must
	// be read.
	dirty    bool
	dirtyIDs map[string]bool
	// unresponsiveSince is since when the runtime has not responded to calls about the pod; zero if it has.
	unresponsiveSince time.Time
	slots             map[string]podstate.Slot
	obs               podstate.Observed
	// obsGeneration counts updates of obs by operations, so that an older result from the runtime does
	// not overwrite them.
	obsGeneration int
	op            *operation
	kills         map[string]*kill
	probes        map[string]*probe.Group
	hooks         map[string]bool // containers whose postStart hook is running
	crashed       map[string]time.Time
	volumes       map[string]volume.Result
	mounted       bool
	stale         bool // volumes must be updated
	mountAt       time.Time
	mountGap      time.Duration
	// mountSince is since when the setup of volumes has failed; zero if it has not.
	mountSince time.Time
	// restarting: all containers are being removed in order to be restarted. removeAt is when a
	// failed removal may be retried.
	restarting bool
	removeAt   time.Time
	adopted    bool
	admitting  bool // admission is not complete, so the loop is not started
	running    bool // the loop was started
	stage      stage
	final      finalStep
	// runAgain: the pod is run again after its termination, so its containers are kept for their
	// logs and restart counts.
	runAgain bool
	// discards is the state of the removal of containers before the deletion of the object.
	discards discardState
	report   reporter
	// actuated are the actual resources of containers, by name, that differ from the pod spec.
	// resize is the reason for the difference; nil if there is none.
	actuated map[string]v1.ResourceRequirements
	resize   *resizeState
	// level are the actual pod-level resources; nil before findLevel was called.
	level *v1.ResourceRequirements
	// lastAppliedMemory is the memory request, in bytes, last applied to each running container, by
	// container ID.
	lastAppliedMemory map[string]int64
	// limitsRelaxed: the limits of the pod's cgroup are wider than those of the pod until the
	// containers that must be restarted for a resize have exited.
	limitsRelaxed bool
	// timing has the times for the metrics of the pod's start and termination.
	timing timing
	// resizeStartedGeneration is the generation for which the start of a resize was last reported.
	resizeStartedGeneration int64
}

// stage is the stage of a pod's lifecycle on the node.
type stage int

const (
	syncing     stage = iota
	terminating       // containers are being stopped
	stopped           // nothing runs; cleanup and last status update
)

type operation struct {
	cancel context.CancelFunc
	// end: the operation is part of the pod's termination and not cancelled by it.
	end bool
}

func newWorker(h *host, pod *v1.Pod) *worker {
	w := &worker{
		host: h, uid: pod.UID, pod: pod, dirty: true,
		log:               h.Log.With("pod", pod.Namespace+"/"+pod.Name),
		wake:              make(chan struct{}, 1),
		done:              make(chan struct{}),
		cleaned:           make(chan struct{}),
		emptiedCh:         make(chan struct{}),
		dirtyIDs:          map[string]bool{},
		slots:             map[string]podstate.Slot{},
		kills:             map[string]*kill{},
		probes:            map[string]*probe.Group{},
		hooks:             map[string]bool{},
		crashed:           map[string]time.Time{},
		volumes:           map[string]volume.Result{},
		actuated:          map[string]v1.ResourceRequirements{},
		lastAppliedMemory: memoryRequestsByID(&pod.Status),
	}
	w.clean = sync.OnceFunc(func() { close(w.cleaned) })
	w.emptied = sync.OnceFunc(func() { close(w.emptiedCh) })
	w.timing.seen = time.Now()
	w.timing.fresh = pod.Status.StartTime == nil && pod.DeletionTimestamp == nil
	w.report.last = pod.Status.DeepCopy()
	w.report.version = pod.ResourceVersion
	return w
}

// kick wakes the loop.
func (w *worker) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// update changes the worker's state and wakes the loop.
func (w *worker) update(f func()) {
	w.mu.Lock()
	f()
	w.mu.Unlock()
	w.kick()
}

// setPod updates the desired pod.
func (w *worker) setPod(pod *v1.Pod) {
	w.update(func() {
		old := w.pod
		w.pod = pod
		w.report.observe(pod)
		w.timeStarted(pod)
		if old.Generation != pod.Generation {
			w.host.Metrics.ResizesRequested(old, pod)
		}
		marks := !maps.Equal(old.Labels, pod.Labels) || !maps.Equal(old.Annotations, pod.Annotations)
		if marks || old.Generation != pod.Generation || !apiequality.Semantic.DeepEqual(old.Spec, pod.Spec) {
			// Retry failures immediately, because the change may fix them.
			for name, s := range w.slots {
				if !s.RetryAt.IsZero() {
					s.RetryAt = time.Time{}
					w.slots[name] = s
				}
			}
			w.mountAt = time.Time{}
		}
		if marks {
			w.stale = true
		}
	})
}

// setRemoved records that the pod was removed from its source.
func (w *worker) setRemoved() { w.update(func() { w.removed, w.runAgain = true, false }) }

// setVerdict terminates the pod, unless it is already terminating.
func (w *worker) setVerdict(v *Verdict) {
	w.update(func() {
		if w.verdict == nil && w.stage == syncing {
			w.verdict = v
			if v.Discard {
				w.discards = discardRequested
			}
			if !v.Rejected {
				w.overdueAt = time.Now().Add(w.overdueAfter())
			}
		}
	})
}

// objectsChanged is called when a ConfigMap or Secret of the pod has changed.
func (w *worker) objectsChanged() {
	w.update(func() {
		w.stale = true
		w.mountAt = time.Time{}
		for name, s := range w.slots {
			if s.Waiting != nil && s.Waiting.Reason == createContainerConfigError {
				s.RetryAt = time.Time{}
				w.slots[name] = s
			}
		}
	})
}

// runtimeEvent handles an event of the runtime about the pod.
func (w *worker) runtimeEvent(id string, kind runtimeapi.ContainerEventType) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.obs.ByID(id)
	if c == nil {
		// A sandbox, or a container that the running operation will add itself.
		for _, s := range w.obs.Sandboxes {
			if s.ID == id && kind == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT && s.Ready {
				w.dirty = true
				w.kick()
			}
		}
		if w.op == nil && kind == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
			w.dirty = true
			w.kick()
		} else if kind == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
			// It may have exited before the operation has added it.
			w.dirtyIDs[id] = true
		}
		return
	}
	switch kind {
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		if c.State == podstate.Created && w.op == nil {
			w.dirtyIDs[id] = true
			w.kick()
		}
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		if c.State != podstate.Exited {
			w.dirtyIDs[id] = true
			w.kick()
		}
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		w.dirty = true
		w.kick()
	}
}

// relist makes the worker read all state from the runtime.
func (w *worker) relist() { w.update(func() { w.dirty = true }) }

// run runs the pod until nothing of it is left or ctx is done. Containers continue to run after
// that.
func (w *worker) run(ctx context.Context) {
	defer w.close()
	w.host.Metrics.WorkerStarted(w.pod, time.Since(w.timing.seen))
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

// close cancels everything that the worker has started, and waits for it.
func (w *worker) close() {
	w.mu.Lock()
	if w.op != nil {
		w.op.cancel()
	}
	for _, k := range w.kills {
		k.cancel()
	}
	groups := w.probes
	w.probes = map[string]*probe.Group{}
	w.mu.Unlock()
	for _, g := range groups {
		g.Stop()
	}
	w.host.Objects.SetReferences(w.uid, nil, nil)
	w.report.wait.Wait()
}

// step checks the state once and starts the required actions. It returns when to call it again, and
// whether nothing is left of the pod.
func (w *worker) step(ctx context.Context) (wakeAt time.Time, done bool) {
	if err := w.refreshTracked(ctx); err != nil {
		if ctx.Err() != nil {
			return time.Time{}, false
		}
		w.log.Warn("getting pod state from the runtime failed", "err", err)
		if !cri.IsUnavailable(err) {
			w.mu.Lock()
			pod := w.pod
			w.mu.Unlock()
			w.host.event(pod, "", true, "FailedSync", "error determining status: "+cri.Message(err))
		}
		return time.Now().Add(time.Second), false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if !w.adopted {
		w.adopt()
	}
	w.decideVerdict(now)
	if w.stage == syncing {
		wakeAt = w.stepSync(ctx, now)
	}
	w.timeEnd(now)
	if w.stage != syncing {
		wakeAt, done = w.stepTermination(ctx, now)
	}
	switch until := w.replacementDeadline(now); {
	case done:
	case until.IsZero():
		w.updateStatus(ctx, now)
	case wakeAt.IsZero() || until.Before(wakeAt):
		wakeAt = until
	}
	return wakeAt, done
}

// stepSync does one step of a pod that is not terminating. The caller must hold mu.
func (w *worker) stepSync(ctx context.Context, now time.Time) time.Time {
	w.syncProbes()
	plan := podstate.Next(w.input(now))
	if plan.Finished && w.op == nil {
		w.stage = terminating
		return time.Time{}
	}
	for _, k := range plan.Kill {
		if k.Replace {
			s := w.slots[k.Name]
			s.ForceRestart = k.ID
			w.slots[k.Name] = s
		}
		grace := w.killGrace(k.ID)
		if k.Immediately {
			grace = 0
		}
		w.startKill(ctx, k.ID, k.Message, grace)
	}
	for _, b := range plan.BackOff {
		w.crashLoop(b)
	}
	wakeAt := plan.WakeAt
	soon := func(t time.Time) {
		if !t.IsZero() && (wakeAt.IsZero() || t.Before(wakeAt)) {
			wakeAt = t
		}
	}
	soon(w.deadline())
	w.restarting = plan.RestartingAll
	if w.restarting {
		switch {
		case w.op != nil || len(w.kills) > 0 || w.obs.AnyRunning() && len(plan.Kill) > 0:
		case w.removeAt.After(now):
			soon(w.removeAt)
		default:
			w.startRemove(ctx, plan.Remove)
		}
		return wakeAt
	}
	if w.op == nil && len(w.kills) == 0 || w.op == nil && !plan.NewSandbox {
		starts := plan.Start[:0:0]
		for _, s := range plan.Start {
			if !w.slots[s.Name].Killing {
				starts = append(starts, s)
			}
		}
		wanted := len(starts) > 0 || plan.NewSandbox
		switch {
		case wanted && !w.mounted && w.mountAt.After(now):
			soon(w.mountAt)
		case wanted:
			w.startOperation(ctx, plan, starts)
		default:
			if soon(w.startResize(ctx, now)); w.op == nil {
				soon(w.refreshVolumes(ctx, now))
			}
		}
	}
	return wakeAt
}

// crashLoop records that a restart is in back-off. The caller must hold mu.
func (w *worker) crashLoop(b podstate.Wait) {
	slot := w.slots[b.Name]
	if slot.Waiting == nil || slot.Waiting.Reason != crashLoopBackOff || !w.crashed[b.Name].Equal(b.Until) {
		w.crashed[b.Name] = b.Until
		slot.Waiting = &v1.ContainerStateWaiting{Reason: crashLoopBackOff, Message: podstate.CrashMessage(w.pod, b)}
		w.slots[b.Name] = slot
		w.host.event(w.pod, b.Name, true, "BackOff", "Back-off restarting failed container "+b.Name+" in pod "+w.pod.Name+"_"+w.pod.Namespace+"("+string(w.pod.UID)+")")
	}
}

// syncProbes starts and stops probes so that exactly the running containers are probed. The caller
// must hold mu.
func (w *worker) syncProbes() {
	running := map[string]bool{}
	for i := range w.obs.Containers {
		st := &w.obs.Containers[i]
		if st.State != podstate.Running {
			continue
		}
		running[st.ID] = true
		if _, ok := w.probes[st.ID]; ok || w.hooks[st.ID] || w.slots[st.Name].Killing {
			continue
		}
		c, kind := podstate.Find(w.pod, st.Name)
		if c == nil || kind == podstate.Ephemeral || (kind == podstate.Init && !podutil.Sidecar(c)) {
			continue
		}
		if c.StartupProbe == nil && c.LivenessProbe == nil && c.ReadinessProbe == nil {
			continue
		}
		pod, name := w.pod, st.Name
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
		if g := w.host.Prober.Start(o); g != nil {
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
