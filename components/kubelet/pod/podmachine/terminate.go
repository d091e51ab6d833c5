package podmachine

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/internal/pod/podutil"
)

// FinalStep is a step of the termination of a pod after its containers have been stopped.
type FinalStep int

// ToStopSandboxes and the other constants are the steps of a pod's termination after its containers have been
// stopped, in order: stop the sandboxes, release volumes and the cgroup, delete the pod from the API, and remove
// containers and logs.
const (
	ToStopSandboxes FinalStep = iota
	ToCleanUp
	ToDeleteObject
	ToRemoveAll
	AllDone
)

// DiscardState is the state of the removal of a terminated pod's containers and logs before its
// object is deleted. They are removed immediately for evicted pods, and for all terminated pods
// when disk space must be reclaimed.
type DiscardState int

// DiscardNone and the other constants are how far the early removal of a terminated pod's containers has come: not
// requested, requested, started, or complete.
const (
	DiscardNone DiscardState = iota
	DiscardRequested
	// DiscardStarted: the removal has started. From now on the status is computed from the last observed
	// containers, because the runtime does not have them any more.
	DiscardStarted
	DiscardDone
)

// Kill is a container to stop: its preStop hook is run, then it gets the stop signal, and is killed
// at the end of the grace period.
type Kill struct {
	ID, Name string
	// Message is the message of the event that reports the kill.
	Message string
	// Grace is the grace period in seconds, including the preStop hook.
	Grace int64
	// Ordered: the container is a sidecar. Its preStop hook runs immediately, but it gets the stop signal
	// only after AllowStop, or at the end of the grace period.
	Ordered bool
	// Shortened: this kill replaces one with a longer grace period that has already run the preStop hook.
	Shortened bool

	allowed bool // AllowStop was decided
}

// minPodGrace is the minimum grace period in seconds of a terminating pod, so that its preStop hooks
// can start.
const minPodGrace = 1

// grace returns the grace period in seconds of the container with that ID. While the pod is not terminating, it
// is that of the failed probe or of the pod spec; the default is 30. While the pod is terminating, the grace
// period of the deletion takes precedence, a decision of the kubelet, such as an eviction, can only shorten it,
// and the minimum is minPodGrace.
func (m *Machine) grace(id string) int64 {
	grace := int64(30)
	if m.Pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = *m.Pod.Spec.TerminationGracePeriodSeconds
	}
	if m.Stage == Syncing {
		if g := probeGrace(m.Pod, m.Containers.Observed.ByID(id), m.health[id]); g != nil {
			grace = *g
		}
		return max(grace, 0)
	}
	if m.Pod.DeletionTimestamp != nil && m.Pod.DeletionGracePeriodSeconds != nil {
		grace = *m.Pod.DeletionGracePeriodSeconds
	}
	if m.Verdict != nil && m.Verdict.Grace != nil {
		grace = min(grace, *m.Verdict.Grace)
	}
	return max(grace, minPodGrace)
}

// probeGrace returns the grace period in seconds that the failed startup or liveness probe of a container
// specifies, or nil if there is none. st is the container, or nil, and h its probe results.
func probeGrace(pod *v1.Pod, st *podstate.Container, h podstate.Health) *int64 {
	if st == nil {
		return nil
	}
	c, _ := podstate.Find(pod, st.Name)
	if c == nil {
		return nil
	}
	for _, p := range []struct {
		result podstate.Result
		probe  *v1.Probe
	}{{h.Startup, c.StartupProbe}, {h.Liveness, c.LivenessProbe}} {
		if p.result == podstate.Failure && p.probe != nil && p.probe.TerminationGracePeriodSeconds != nil {
			return p.probe.TerminationGracePeriodSeconds
		}
	}
	return nil
}

// kill records that the container with that ID is being stopped and returns what to stop, or nil if the container
// does not exist or is already being stopped with the same or a shorter grace period. message is that of the event,
// and grace is in seconds. ordered is true for a sidecar whose stop signal waits until the containers before it in
// the order of termination have exited.
func (m *Machine) kill(id, message string, grace int64, ordered bool) *Kill {
	st := m.Containers.Observed.ByID(id)
	if st == nil {
		return nil
	}
	before, stopping := m.Kills[id]
	if stopping && before.Grace <= grace {
		return nil
	}
	k := Kill{ID: id, Name: st.Name, Message: message, Grace: grace, Ordered: ordered, Shortened: stopping}
	m.Kills[id] = k
	m.Containers.update(st.Name, func(s *podstate.Slot) { s.Killing = true })
	return &k
}

// kill adds the container k to those that the decision stops. It does nothing if k is nil.
func (d *Decision) kill(k *Kill) {
	if k != nil {
		d.Kill = append(d.Kill, *k)
	}
}

// Stop decides to stop the container with that ID, because its postStart hook has failed. message is that of the
// event. The caller must execute the decision.
func (m *Machine) Stop(id, message string) (d Decision) {
	d.kill(m.kill(id, message, m.grace(id), false))
	return d
}

// KillFinished records that the container with that ID was stopped. It must not be called for a kill that was
// replaced by one with a shorter grace period.
func (m *Machine) KillFinished(id string) {
	k, ok := m.Kills[id]
	if !ok {
		return
	}
	delete(m.Kills, id)
	m.Containers.update(k.Name, func(s *podstate.Slot) { s.Killing = false })
}

// stepTermination decides the next step for a terminating pod: first all containers are stopped, then the
// steps of FinalStep follow in order. An operation in progress that is not part of the termination is
// cancelled.
func (m *Machine) stepTermination(in Input, d *Decision) {
	d.WakeAt = time.Time{}
	m.reportOverdue(m.Stage == Stopped, in.Now, d)
	if m.Operation != None {
		d.CancelOperation = !m.Operation.terminates()
		d.wake(m.overdueAt)
		return
	}
	d.StopProbes = true
	if m.Stage == Terminating {
		if m.stopContainers(d) {
			d.wake(m.overdueAt)
			return
		}
		if m.Final == ToStopSandboxes {
			m.beginStep(StopSandboxes, in.Now, d)
			return
		}
		m.Stage = Stopped
	}
	switch m.Final {
	case ToCleanUp:
		m.beginStep(CleanUp, in.Now, d)
	case ToDeleteObject:
		m.stepObject(in, d)
	case ToRemoveAll:
		m.beginStep(RemoveAll, in.Now, d)
	case AllDone:
		d.Done = true
	}
}

// beginStep starts a step of the termination, unless it has failed before and must wait.
func (m *Machine) beginStep(kind OperationKind, now time.Time, d *Decision) {
	if m.Retry.At.After(now) {
		d.wake(m.Retry.At)
		return
	}
	m.begin(d, Operation{Kind: kind})
}

// stepObject decides for a pod of which no process runs and whose volumes are removed. The API object is
// deleted when it has the last status; the containers are removed after that, because the status describes
// them. A terminated pod that is not deleted remains.
func (m *Machine) stepObject(in Input, d *Decision) {
	switch {
	case m.Retry.At.After(in.Now):
		d.wake(m.Retry.At)
	case m.Removed:
		m.Final = ToRemoveAll
		if m.RunAgain {
			m.Final = AllDone
		}
		d.Again = true
	case !m.HasObject:
	case m.Discarding == DiscardRequested || m.Discarding == DiscardStarted:
		m.Discarding = DiscardStarted
		m.begin(d, Operation{Kind: Discard})
	case m.Pod.DeletionTimestamp != nil && in.StatusSettled:
		// The last status is written before the deletion.
		m.begin(d, Operation{Kind: DeleteObject})
	}
}

// finishStep records the outcome of the termination step kind, and proceeds to the next step. A failed step
// is retried with a back-off. If processes are still running, the termination begins again with stopping the
// containers.
func (m *Machine) finishStep(kind OperationKind, outcome Outcome, now time.Time) {
	if outcome == StillRunning {
		m.Stage, m.Final = Terminating, ToStopSandboxes
	}
	if outcome == Failed || outcome == StillRunning && kind == CleanUp {
		m.Retry.fail(now, minStepBackoff, maxStepBackoff)
		return
	}
	m.Retry.Reset()
	if outcome == StillRunning {
		return
	}
	switch kind {
	case StopSandboxes:
		for i := range m.Containers.Observed.Sandboxes {
			m.Containers.Observed.Sandboxes[i].Ready = false
		}
		m.Final = ToCleanUp
	case CleanUp:
		m.Final = ToDeleteObject
	case Discard:
		m.Discarding = DiscardDone
	case DeleteObject:
		m.Final = ToRemoveAll
	case RemoveAll:
		m.Final = AllDone
	}
}

// RequestDiscard makes the containers and logs of a terminated pod be removed before its object is deleted,
// to reclaim disk space. It returns false if the pod has not terminated, has no object, or they are already
// removed.
func (m *Machine) RequestDiscard() bool {
	able := m.Stage == Stopped && m.Final == ToDeleteObject && m.HasObject && m.Discarding != DiscardDone
	if able {
		m.Discarding = max(m.Discarding, DiscardRequested)
	}
	return able
}

// stopContainers stops the running containers as upstream's kubelet does: the preStop hooks of all containers
// run concurrently; sidecars then wait until the app containers, and the sidecars that are listed after them,
// have exited, all within the grace period. It reports whether a container is still running.
//
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#termination-of-sidecar-containers
func (m *Machine) stopContainers(d *Decision) (running bool) {
	apps := false
	sidecars := map[string]string{} // IDs by name
	for i := range m.Containers.Observed.Containers {
		st := &m.Containers.Observed.Containers[i]
		if st.State != podstate.Running && st.State != podstate.Unknown {
			continue
		}
		running = true
		c, kind := podstate.Find(m.Pod, st.Name)
		sidecar := c != nil && kind == podstate.Init && podutil.Sidecar(c)
		if sidecar {
			sidecars[st.Name] = st.ID
		}
		// Sidecars do not wait for init and ephemeral containers.
		apps = apps || c != nil && kind == podstate.App
		d.kill(m.kill(st.ID, "Stopping container "+st.Name, m.grace(st.ID), sidecar))
	}
	if name := sidecarToStop(m.Pod, sidecars, apps); name != "" {
		id := sidecars[name]
		if k := m.Kills[id]; k.Ordered && !k.allowed {
			k.allowed = true
			m.Kills[id] = k
			d.AllowStop = append(d.AllowStop, id)
		}
	}
	return running
}

// sidecarToStop returns the name of the next sidecar to stop: the last of the running ones, if no app
// container is running. It returns "" if there is none. sidecars are the IDs of the running sidecars by name,
// and apps is true while an app container runs.
func sidecarToStop(pod *v1.Pod, sidecars map[string]string, apps bool) string {
	if apps {
		return ""
	}
	for i := range slices.Backward(pod.Spec.InitContainers) {
		if name := pod.Spec.InitContainers[i].Name; sidecars[name] != "" {
			return name
		}
	}
	return ""
}
