package pods

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/internal/pod/podutil"
)

// adopt initializes the worker's state from what an earlier kubelet has created.
func (w *worker) adopt() {
	w.adopted = true
	if w.obs.Sandbox() != nil {
		w.stale = true
	}
	if len(w.host.refs(w.pod)) > 0 {
		w.host.Objects.SetReferences(w.uid, w.host.refs(w.pod), w.objectsChanged)
	}
	w.restarting = slices.ContainsFunc(w.pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.AllContainersRestarting && c.Status == v1.ConditionTrue
	})
	if podutil.Terminal(w.pod) && w.stage == syncing {
		w.stage = terminating
		if r := w.pod.Status.Reason; (r == "Evicted" || r == "Preempting") && len(w.obs.Containers)+len(w.obs.Sandboxes) > 0 {
			w.discards = discardRequested
		}
	}
}

func (h *host) refs(pod *v1.Pod) []objectcache.Ref { return objectcache.Of(pod) }

// decideVerdict decides whether the pod must be terminated.
func (w *worker) decideVerdict(now time.Time) {
	if w.stage != syncing {
		return
	}
	if w.verdict == nil && w.pod.Spec.ActiveDeadlineSeconds != nil && !w.removed {
		if end := w.deadline(); !end.IsZero() && !now.Before(end) {
			w.verdict = &Verdict{Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}
			w.host.event(w.pod, "", false, "DeadlineExceeded", w.verdict.Message)
		}
	}
	if w.removed || w.pod.DeletionTimestamp != nil || w.verdict != nil {
		w.stage = terminating
	}
}

func (w *worker) deadline() time.Time {
	if w.pod.Spec.ActiveDeadlineSeconds == nil {
		return time.Time{}
	}
	start := w.report.want.StartTime
	if start == nil {
		start = w.report.last.StartTime
	}
	if start == nil {
		return time.Time{}
	}
	return start.Add(time.Duration(*w.pod.Spec.ActiveDeadlineSeconds) * time.Second)
}

// refreshTracked calls refresh and records since when the runtime does not respond.
func (w *worker) refreshTracked(ctx context.Context) error {
	w.mu.Lock()
	if w.unresponsiveSince.IsZero() {
		w.unresponsiveSince = time.Now()
	}
	w.mu.Unlock()
	err := w.refresh(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !cri.IsDeadlineExceeded(err) {
		w.unresponsiveSince = time.Time{}
	}
	return err
}

// refresh gets the state that may have changed from the runtime.
func (w *worker) refresh(ctx context.Context) error {
	w.mu.Lock()
	all, ids := w.dirty, w.dirtyIDs
	w.dirty, w.dirtyIDs = false, map[string]bool{}
	if w.discards >= discardStarted {
		w.mu.Unlock()
		return nil
	}
	if w.op != nil && !all {
		// The operation updates its container itself.
		for id := range ids {
			if w.obs.ByID(id) == nil {
				delete(ids, id)
				w.dirtyIDs[id] = true
			}
		}
	}
	w.mu.Unlock()
	if all {
		w.mu.Lock()
		before := w.obsGeneration
		w.mu.Unlock()
		began := time.Now()
		obs, err := w.host.CRI.Observe(ctx, w.uid)
		w.host.Metrics.PodRelisted(time.Since(began))
		if err != nil {
			w.mu.Lock()
			w.dirty = true
			w.mu.Unlock()
			return err
		}
		w.mu.Lock()
		pod := w.pod
		known := w.obs
		w.mu.Unlock()
		for i := range obs.Containers {
			w.host.fillMessage(pod, &obs.Containers[i], known.ByID(obs.Containers[i].ID))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.obsGeneration != before {
			// The result may be older than an update by an operation.
			w.dirty = true
			w.kick()
			return nil
		}
		w.obs = obs
		return nil
	}
	for id := range ids {
		if err := w.observe(ctx, id); err != nil {
			w.mu.Lock()
			w.dirty = true
			w.mu.Unlock()
			return err
		}
	}
	return nil
}

// forgetContainer removes a container that the runtime does not have any more. The caller must hold mu.
func (w *worker) forgetContainer(id string) {
	w.obsGeneration++
	for i := range w.obs.Containers {
		if w.obs.Containers[i].ID == id {
			w.obs.Containers = append(w.obs.Containers[:i:i], w.obs.Containers[i+1:]...)
			return
		}
	}
}

// observe gets the state of one known container from the runtime.
func (w *worker) observe(ctx context.Context, id string) error {
	c, err := w.host.CRI.Container(ctx, id)
	if err != nil {
		if isNotFound(err) {
			w.mu.Lock()
			w.forgetContainer(id)
			w.mu.Unlock()
			return nil
		}
		return err
	}
	w.mu.Lock()
	pod := w.pod
	old := w.obs.ByID(id)
	w.mu.Unlock()
	w.host.fillMessage(pod, &c, old)
	w.mu.Lock()
	defer w.mu.Unlock()
	if old := w.obs.ByID(id); old != nil {
		c.SandboxID = old.SandboxID
		*old = c
	} else {
		w.dirty = true
		w.kick()
	}
	return nil
}

// input returns the current input of podstate.Next. The caller must hold mu.
func (w *worker) input(now time.Time) podstate.Input {
	health := make(map[string]podstate.Health, len(w.probes)+len(w.hooks))
	for id, g := range w.probes {
		health[id] = g.Health()
	}
	for id := range w.hooks {
		h := health[id]
		h.PostStartRunning = true
		health[id] = h
	}
	return podstate.Input{Pod: w.pod, Observed: &w.obs, Health: health, Slots: w.slots, Now: now, CrashMax: w.host.CrashMax, RestartingAll: w.restarting}
}

// ips returns the pod's IP addresses. The caller must hold mu.
func (w *worker) ips() []string {
	if w.pod.Spec.HostNetwork {
		return w.host.Node.IPs()
	}
	if s := w.obs.Sandbox(); s != nil {
		return s.IPs
	}
	return nil
}

func (w *worker) podIP() string {
	if ips := w.ips(); len(ips) > 0 {
		return ips[0]
	}
	return ""
}
