package pods

import (
	"context"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/pod/podstate"
)

// freshness records which part of a pod's state in the runtime is out of date, so that the worker must read it in
// its next step: everything or single containers. The worker's mu guards it.
type freshness struct {
	all bool            // all state must be read
	ids map[string]bool // the state of these containers must be read
	// unresponsiveSince is since when the runtime has not responded to calls about the pod; zero if it has.
	unresponsiveSince time.Time
}

// handle records what the worker must read after an event of the runtime about the container or sandbox id. o is
// the state that the worker has observed last. operating is true while an operation on the pod is in progress,
// because that operation itself observes the containers that it creates. wake is true if the worker must read the
// state immediately.
func (f *freshness) handle(id string, kind runtimeapi.ContainerEventType, o *podstate.Observed, operating bool) (wake bool) {
	stopped := kind == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
	c := o.ByID(id)
	if c == nil {
		// A sandbox, or a container that the running operation will add itself.
		for _, s := range o.Sandboxes {
			if s.ID == id && stopped && s.Ready {
				f.all, wake = true, true
			}
		}
		if !operating && stopped {
			f.all, wake = true, true
		} else if stopped {
			// It may have exited before the operation has added it.
			f.ids[id] = true
		}
		return wake
	}
	switch kind {
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		if c.State == podstate.Created && !operating {
			f.ids[id], wake = true, true
		}
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		if c.State != podstate.Exited {
			f.ids[id], wake = true, true
		}
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		f.all, wake = true, true
	}
	return wake
}

// take returns what the worker must read from the runtime, and clears the record. If all is true, everything must
// be read, otherwise the containers ids. known is the state observed last. With operating, an operation on the pod
// is in progress: containers that it has created but not yet added to known stay recorded for a later step.
func (f *freshness) take(known *podstate.Observed, operating bool) (all bool, ids map[string]bool) {
	all, ids = f.all, f.ids
	f.all, f.ids = false, map[string]bool{}
	if operating && !all {
		// The operation updates its container itself.
		for id := range ids {
			if known.ByID(id) == nil {
				delete(ids, id)
				f.ids[id] = true
			}
		}
	}
	return all, ids
}

// refreshTracked calls refresh and records since when the runtime does not respond, for RuntimeUnresponsive.
// After an error, the next call reads everything.
func (w *worker) refreshTracked(ctx context.Context) error {
	w.mu.Lock()
	if w.fresh.unresponsiveSince.IsZero() {
		w.fresh.unresponsiveSince = time.Now()
	}
	w.mu.Unlock()
	err := w.refresh(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !cri.IsDeadlineExceeded(err) {
		w.fresh.unresponsiveSince = time.Time{}
	}
	if err != nil {
		w.fresh.all = true
	}
	return err
}

// refresh reads the state that freshness has recorded from the runtime. It reads nothing once the containers
// of a terminated pod are being removed, because the status is computed from the last observed ones.
func (w *worker) refresh(ctx context.Context) error {
	w.mu.Lock()
	m := w.machine
	all, ids := w.fresh.take(&m.Containers.Observed, m.Operation != podmachine.None)
	discarded := m.Discarding >= podmachine.DiscardStarted
	w.mu.Unlock()
	switch {
	case discarded:
		return nil
	case all:
		return w.observeAll(ctx)
	}
	for id := range ids {
		if err := w.observe(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// observeAll reads the state of all sandboxes and containers of the pod from the runtime. If an operation has
// updated the state in the meantime, the result may be older and is ignored; the worker then reads again.
func (w *worker) observeAll(ctx context.Context) error {
	w.mu.Lock()
	before := w.machine.Containers.Generation
	w.mu.Unlock()
	began := time.Now()
	obs, err := w.host.CRI.Observe(ctx, w.uid)
	w.host.Metrics.PodRelisted(time.Since(began))
	if err != nil {
		return err
	}
	w.mu.Lock()
	pod := w.machine.Pod
	known := podstate.Observed{Containers: slices.Clone(w.machine.Containers.Observed.Containers)}
	w.mu.Unlock()
	for i := range obs.Containers {
		w.host.logs.fillMessage(pod, &obs.Containers[i], known.ByID(obs.Containers[i].ID))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.machine.Containers.Generation != before {
		// The result may be older than an update by an operation.
		w.fresh.all = true
		w.kick()
		return nil
	}
	w.machine.Containers.Observed = obs
	return nil
}

// observe reads the state of the container id from the runtime. A container that the runtime does not have
// any more is removed from the observed state. If the container was not observed before, the worker reads
// everything in its next step.
func (w *worker) observe(ctx context.Context, id string) error {
	c, err := w.host.CRI.Container(ctx, id)
	if err != nil && !isNotFound(err) {
		return err
	}
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.machine.Containers.Forget(id)
		return nil
	}
	w.mu.Lock()
	pod := w.machine.Pod
	var known *podstate.Container
	if old := w.machine.Containers.Observed.ByID(id); old != nil {
		before := *old
		known = &before
	}
	w.mu.Unlock()
	w.host.logs.fillMessage(pod, &c, known)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.machine.Containers.Observe(c) {
		w.fresh.all = true
		w.kick()
	}
	return nil
}
