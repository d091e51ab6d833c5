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
	"hyperkube/components/kubelet/podstate"
	"hyperkube/components/kubelet/probe"
	"hyperkube/components/kubelet/volume"
	"hyperkube/internal/podfacts"
)

// Verdict is the kubelet's own decision to end a pod.
type Verdict struct {
	Reason, Message string
	// Rejected: the pod was not let in at all; the Manager sets it.
	Rejected bool
	// Grace overrides the pod's grace period, in seconds; nil does not.
	Grace *int64
	// Discard: its containers and logs are removed as soon as it has ended, for the
	// room that they take.
	Discard bool
	// Conditions are added to the pod's status.
	Conditions []v1.PodCondition
}

// worker runs one pod. Its loop alone decides; what takes long is done by
// goroutines of their own, of which there is at most one that starts things
// (op) and one for each container that is being stopped.
type worker struct {
	host *Host
	uid  types.UID
	log  *slog.Logger
	wake chan struct{} // capacity 1
	done chan struct{} // closed once nothing is left of the pod
	// cleaned is closed, by clean, once nothing of the pod runs and its volumes
	// are gone.
	cleaned chan struct{}
	clean   func()
	// bare is closed, by emptied, once its containers and logs are removed.
	bare    chan struct{}
	emptied func()

	mu sync.Mutex // guards all below
	// pod is what is wanted, as the source last told.
	pod *v1.Pod
	// gone: the source has it no more.
	gone bool
	// orphan: no source ever had it; what is known of it is from the runtime.
	orphan bool
	// verdict is not nil once the kubelet itself has ended the pod, which is told to
	// take too long at lateAt; zero: it is not.
	verdict *Verdict
	lateAt  time.Time
	// dirty: the runtime must be asked for everything; dirtyIDs: for these.
	dirty    bool
	dirtyIDs map[string]bool
	// silent is since when the runtime has not answered what it was asked of the
	// pod; zero: it has.
	silent time.Time
	slots  map[string]podstate.Slot
	obs    podstate.Observed
	// learned counts what operations have told of obs, so that what was asked
	// for before does not undo it.
	learned  int
	op       *operation
	kills    map[string]*kill
	probes   map[string]*probe.Group
	hooks    map[string]bool // containers whose postStart hook runs
	crashed  map[string]time.Time
	volumes  map[string]volume.Result
	mounted  bool
	stale    bool // volumes are to be brought up to date
	mountAt  time.Time
	mountGap time.Duration
	// mountSince is since when volumes have been set up in vain; zero: they are
	// not.
	mountSince time.Time
	// restarting: all containers are being removed, to be started anew. removeAt
	// is when that may be tried again.
	restarting bool
	removeAt   time.Time
	adopted    bool
	admitting  bool // nobody has said yet whether it may run: its loop is not started
	running    bool // its loop has been started
	stage      stage
	final      finalStep
	// renewed: when it has ended the pod is run again, so that its containers are
	// left for their logs and counts.
	renewed bool
	// discards is whether its containers go before its object.
	discards discarding
	report   reporter
	// actuated are the resources that containers have, by name, where they are
	// not yet what the pod says; resize tells why, nil when all are.
	actuated map[string]v1.ResourceRequirements
	resize   *resizeState
	// level are the resources that the pod as a whole has; nil: not looked yet.
	level *v1.ResourceRequirements
	// given is the memory that running containers asked for when it was last seen
	// to, in bytes, by ID.
	given map[string]int64
	// loose: the pod's cgroup has wider limits than the pod, until containers
	// that must be restarted to be resized have ended.
	loose bool
	// timing is what is measured of the pod's start and end.
	timing timing
	// resizeTold is the generation of which it was told that it is resized to.
	resizeTold int64
}

// stage of a pod's life on the node.
type stage int

const (
	syncing     stage = iota
	terminating       // containers are being stopped, for good
	stopped           // nothing runs; cleaning up and reporting
)

type operation struct {
	cancel context.CancelFunc
	// end: it belongs to the pod's end and is not to be cut short by it.
	end bool
}

func newWorker(h *Host, pod *v1.Pod) *worker {
	w := &worker{
		host: h, uid: pod.UID, pod: pod, dirty: true,
		log:      h.Log.With("pod", pod.Namespace+"/"+pod.Name),
		wake:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		cleaned:  make(chan struct{}),
		bare:     make(chan struct{}),
		dirtyIDs: map[string]bool{},
		slots:    map[string]podstate.Slot{},
		kills:    map[string]*kill{},
		probes:   map[string]*probe.Group{},
		hooks:    map[string]bool{},
		crashed:  map[string]time.Time{},
		volumes:  map[string]volume.Result{},
		actuated: map[string]v1.ResourceRequirements{},
		given:    told(&pod.Status),
	}
	w.clean = sync.OnceFunc(func() { close(w.cleaned) })
	w.emptied = sync.OnceFunc(func() { close(w.bare) })
	w.timing.seen = time.Now()
	w.timing.fresh = pod.Status.StartTime == nil && pod.DeletionTimestamp == nil
	w.report.last = pod.Status.DeepCopy()
	w.report.version = pod.ResourceVersion
	return w
}

// kick makes the loop look again.
func (w *worker) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// update changes the worker's state and makes the loop look at it.
func (w *worker) update(f func()) {
	w.mu.Lock()
	f()
	w.mu.Unlock()
	w.kick()
}

// setPod says what is wanted now.
func (w *worker) setPod(pod *v1.Pod) {
	w.update(func() {
		old := w.pod
		w.pod = pod
		w.report.seen(pod)
		w.timeStarted(pod)
		if old.Generation != pod.Generation {
			w.host.Metrics.ResizesAsked(old, pod)
		}
		marks := !maps.Equal(old.Labels, pod.Labels) || !maps.Equal(old.Annotations, pod.Annotations)
		if marks || old.Generation != pod.Generation || !apiequality.Semantic.DeepEqual(old.Spec, pod.Spec) {
			// What failed may work now.
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

// setGone says that the pod is not wanted any more at all.
func (w *worker) setGone() { w.update(func() { w.gone, w.renewed = true, false }) }

// setVerdict ends the pod, unless it has ended already.
func (w *worker) setVerdict(v *Verdict) {
	w.update(func() {
		if w.verdict == nil && w.stage == syncing {
			w.verdict = v
			if v.Discard {
				w.discards = unwanted
			}
			if !v.Rejected {
				w.lateAt = time.Now().Add(w.late())
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

// runtimeEvent is called when the runtime reports something of the pod.
func (w *worker) runtimeEvent(id string, kind runtimeapi.ContainerEventType) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.obs.ByID(id)
	if c == nil {
		// A sandbox, or what the running operation is about to report itself.
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
			// It may have ended before the operation has told of it.
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

// relist makes the worker ask the runtime for everything.
func (w *worker) relist() { w.update(func() { w.dirty = true }) }

// run drives the pod until nothing of it is left or ctx ends; what runs of it
// goes on running then.
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

// close ends all that the worker started, and waits for it.
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
	w.host.Objects.Refer(w.uid, nil, nil)
	w.report.wait.Wait()
}

// step looks at everything once and sets in motion what is to be done.
func (w *worker) step(ctx context.Context) (wakeAt time.Time, done bool) {
	if err := w.look(ctx); err != nil {
		if ctx.Err() != nil {
			return time.Time{}, false
		}
		w.log.Warn("asking the runtime for a pod failed", "error", err)
		if !cri.IsGone(err) {
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
	w.judge(now)
	if w.stage == syncing {
		wakeAt = w.stepSync(ctx, now)
	}
	w.timeEnd(now)
	if w.stage != syncing {
		wakeAt, done = w.stepEnd(ctx, now)
	}
	switch until := w.replacing(now); {
	case done:
	case until.IsZero():
		w.report1(ctx, now)
	case wakeAt.IsZero() || until.Before(wakeAt):
		wakeAt = until
	}
	return wakeAt, done
}

// stepSync does one step of a pod that is to run. The caller holds mu.
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
		if k.Now {
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
			w.startOp(ctx, plan, starts)
		default:
			if soon(w.startResize(ctx, now)); w.op == nil {
				soon(w.refreshVolumes(ctx, now))
			}
		}
	}
	return wakeAt
}

// crashLoop says that a restart waits. The caller holds mu.
func (w *worker) crashLoop(b podstate.Wait) {
	slot := w.slots[b.Name]
	if slot.Waiting == nil || slot.Waiting.Reason != crashLoopBackOff || !w.crashed[b.Name].Equal(b.Until) {
		w.crashed[b.Name] = b.Until
		slot.Waiting = &v1.ContainerStateWaiting{Reason: crashLoopBackOff, Message: podstate.CrashMessage(w.pod, b)}
		w.slots[b.Name] = slot
		w.host.event(w.pod, b.Name, true, "BackOff", "Back-off restarting failed container "+b.Name+" in pod "+w.pod.Name+"_"+w.pod.Namespace+"("+string(w.pod.UID)+")")
	}
}

// syncProbes probes exactly the containers that run. The caller holds mu.
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
		if c == nil || kind == podstate.Ephemeral || (kind == podstate.Init && !podfacts.Sidecar(c)) {
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
		if known := podstate.StatusOf(w.report.last, name); known != nil && known.ContainerID == w.host.RuntimeName+"://"+st.ID {
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
