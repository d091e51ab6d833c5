// Package podmachine is the state machine of one pod on its node. Its inputs are the desired pod,
// what was observed of its containers, sandbox and volumes, the results of operations, and the time.
// From them Step decides what to do next: which containers to stop, which operation to start, whether
// to report the status, and when to be called again. Package podstate computes what the containers of
// a pod that is not terminating need; this package adds the termination, retries and resizes.
//
// The package is pure: it has no goroutines, no I/O, no locks and no clock. Package pods executes the
// decisions and reports the results. The transcripts in testdata show both sides.
package podmachine

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/internal/pod/podutil"
)

// Options are properties of a pod and its node that do not change.
type Options struct {
	// HasObject: the pod has an object in the API, which must be deleted when the pod has
	// terminated. Static pods have none.
	HasObject bool
	// CrashMax is the maximum restart back-off after crashes. Zero means upstream's default.
	CrashMax time.Duration
	// Limits returns the limits that a container of a pod should have. It must be pure. If it is
	// nil, containers are not resized.
	Limits func(pod *v1.Pod, c *v1.Container) podstate.Resources
}

// Machine is the state machine of one pod: it stores the state of the pod and decides what to do next, but executes
// nothing. It is not safe for concurrent use. Callers may read the exported fields, and change them only by
// methods.
type Machine struct {
	Options
	Desired
	// Containers are the observed sandboxes and containers.
	Containers Containers
	Volumes    Volumes
	Resize     Resize
	// Retry delays the next attempt of a failed operation on the whole pod.
	Retry Retry

	Stage Stage
	// Final is the next step of the termination.
	Final FinalStep
	// Discarding is the state of the removal of containers before the deletion of the object.
	Discarding DiscardState
	// Operation is the operation in progress, or None.
	Operation OperationKind
	// Kills are the containers that are being stopped, by ID.
	Kills map[string]Kill
	// RestartingAll: all containers are being removed in order to be restarted.
	RestartingAll bool
	// Adopted: what an earlier kubelet has created was taken over.
	Adopted bool

	health   map[string]podstate.Health // of the last step
	removeAt time.Time                  // when a failed removal for RestartingAll may be retried
}

// Stage is the stage of a pod's lifecycle on the node.
type Stage int

// Syncing is the stage of a pod whose containers are started and restarted. In Terminating, containers are being
// stopped. In Stopped, nothing of the pod runs; volumes and containers are removed and the last status is written
// to the API.
const (
	Syncing     Stage = iota
	Terminating       // containers are being stopped
	Stopped           // nothing runs; cleanup and last status update
)

// New returns the state machine of a pod whose sandboxes and containers have not been read from the runtime yet.
func New(pod *v1.Pod, o Options) *Machine {
	return &Machine{
		Options: o, Desired: Desired{Pod: pod},
		Containers: Containers{Slots: map[string]podstate.Slot{}, hooks: map[string]bool{}, crashed: map[string]time.Time{}},
		Kills:      map[string]Kill{},
		Resize:     newResize(&pod.Status),
	}
}

// Input is what Step needs in addition to the state of the Machine: the time, the probe results, and the pod's
// status in the API.
type Input struct {
	Now time.Time
	// Health are the probe results of containers by ID.
	Health map[string]podstate.Health
	// Last is the status known from the API, and StartTime the pod's start time of the current
	// status; nil if the pod has not started.
	Last      *v1.PodStatus
	StartTime *metav1.Time
	// StatusSettled: the API has the current status.
	StatusSettled bool
}

// Decision is the result of Step. The caller executes it in the order of the fields.
type Decision struct {
	Events []Event
	// CancelOperation: the operation in progress must be interrupted.
	CancelOperation bool
	// StopProbes: startup and liveness probes are not needed any more, and readiness probes only
	// for running containers.
	StopProbes bool
	// Kill are containers to stop. AllowStop are sidecars whose kill was started before and which
	// may be stopped now.
	Kill      []Kill
	AllowStop []string
	// Operation is the operation to start. Its Kind is None for none.
	Operation Operation
	// Report: the status must be computed and reported.
	Report bool
	// WakeAt is when Step must be called again even if nothing changes; zero means never.
	WakeAt time.Time
	// Again: Step must be called again immediately.
	Again bool
	// Done: nothing is left of the pod.
	Done bool
}

// Event is a Kubernetes event to emit about the pod or, if Container is set, about one of its containers.
type Event struct {
	Container       string // "" for the pod
	Warning         bool
	Reason, Message string
}

// event adds an event to the decision. container is "" for an event about the pod.
func (d *Decision) event(container string, warning bool, reason, message string) {
	d.Events = append(d.Events, Event{container, warning, reason, message})
}

// wake makes the caller call Step again at t. The zero time is ignored.
func (d *Decision) wake(t time.Time) {
	if !t.IsZero() && (d.WakeAt.IsZero() || t.Before(d.WakeAt)) {
		d.WakeAt = t
	}
}

// Step decides what to do now, and updates the state of the machine as if the decision were executed. The
// caller must execute it. It must be called after each change of an input, and at WakeAt.
func (m *Machine) Step(in Input) Decision {
	var d Decision
	m.health = in.Health
	if !m.Adopted {
		m.adopt()
	}
	m.applyDesired(in, &d)
	if m.Stage == Syncing {
		m.stepSync(in, &d)
	}
	if m.Stage != Syncing {
		m.stepTermination(in, &d)
	}
	var delay time.Time
	if m.Stage == Syncing && m.Verdict == nil {
		delay = m.Containers.replacementDeadline(in.Now)
	}
	d.Report = !d.Done && delay.IsZero() && !m.suspended()
	d.wake(delay)
	return d
}

// WillTerminate reports whether the pod is terminating or the next step will terminate it.
func (m *Machine) WillTerminate() bool {
	return m.Stage != Syncing || m.mustTerminate() || !m.Adopted && podutil.Terminal(m.Pod)
}

// adopt initializes the state in the first step from what an earlier kubelet has created: the volumes of a
// running pod are updated, an interrupted restart of all containers is continued, and a pod with a terminal
// phase is terminated. The containers of an evicted or preempted pod are removed immediately.
func (m *Machine) adopt() {
	m.Adopted = true
	if m.Containers.Observed.Sandbox() != nil {
		m.Volumes.Stale = true
	}
	m.RestartingAll = slices.ContainsFunc(m.Pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.AllContainersRestarting && c.Status == v1.ConditionTrue
	})
	if podutil.Terminal(m.Pod) && m.Stage == Syncing {
		m.Stage = Terminating
		o := &m.Containers.Observed
		if r := m.Pod.Status.Reason; (r == "Evicted" || r == "Preempting") && len(o.Containers)+len(o.Sandboxes) > 0 {
			m.Discarding = DiscardRequested
		}
	}
}

// applyDesired begins the termination of a pod that must not run any more, or whose activeDeadlineSeconds has
// passed; the latter with an event. It does nothing if the pod is already terminating.
func (m *Machine) applyDesired(in Input, d *Decision) {
	if m.Stage != Syncing {
		return
	}
	if end := m.deadline(in.StartTime); m.Verdict == nil && !m.Removed && !end.IsZero() && !in.Now.Before(end) {
		m.Verdict = &Verdict{Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}
		d.event("", false, m.Verdict.Reason, m.Verdict.Message)
	}
	if m.mustTerminate() {
		m.Stage = Terminating
	}
}

// NextInput returns the input of podstate.Next and of the status at now. health are the probe results by
// container ID; NextInput adds the running postStart hooks to them.
func (m *Machine) NextInput(now time.Time, health map[string]podstate.Health) podstate.Input {
	return podstate.Input{
		Pod: m.Pod, Observed: &m.Containers.Observed, Health: m.Containers.withHooks(health), Slots: m.Containers.Slots,
		Now: now, CrashMax: m.CrashMax, RestartingAll: m.RestartingAll,
	}
}

// stepSync decides for a pod that is not terminating: it computes which containers to stop and to start
// (podstate.Next), and starts an operation if one is required and none is in progress. If no container runs or will
// be started any more, the pod becomes Terminating.
func (m *Machine) stepSync(in Input, d *Decision) {
	plan := podstate.Next(m.NextInput(in.Now, in.Health))
	if plan.Finished && m.Operation == None {
		m.Stage = Terminating
		return
	}
	for _, k := range plan.Kill {
		if k.Replace {
			m.Containers.forceRestart(k.Name, k.ID)
		}
		grace := m.grace(k.ID)
		if k.Immediately {
			grace = 0
		}
		d.kill(m.kill(k.ID, k.Message, grace, false))
	}
	for _, b := range plan.BackOff {
		m.Containers.crashLoop(m.Pod, b, d)
	}
	d.wake(plan.WakeAt)
	d.wake(m.deadline(in.StartTime))
	m.RestartingAll = plan.RestartingAll
	switch {
	case m.RestartingAll:
		m.stepRestartAll(&plan, in.Now, d)
	case m.Operation != None || len(m.Kills) > 0 && plan.NewSandbox:
	default:
		m.stepStart(&plan, in, d)
	}
}

// stepRestartAll begins the removal of the containers in plan.Remove when all containers are stopped, because a
// restart rule restarts all containers. A failed removal is retried after removeRetryInterval.
func (m *Machine) stepRestartAll(plan *podstate.Plan, now time.Time, d *Decision) {
	switch {
	case m.Operation != None || len(m.Kills) > 0 || m.Containers.Observed.AnyRunning() && len(plan.Kill) > 0:
	case m.removeAt.After(now):
		d.wake(m.removeAt)
	default:
		m.Containers.keepAttempts(plan.Remove)
		m.begin(d, Operation{Kind: RemoveContainers, Remove: plan.Remove})
	}
}

// stepStart begins an operation: the start of the containers in plan.Start, in a new sandbox if required,
// except those that are being stopped. While the volumes are not set up, it waits for the end of the back-off.
// If there is nothing to start, it begins a resize or an update of the volumes, if required. No operation may
// be in progress.
func (m *Machine) stepStart(plan *podstate.Plan, in Input, d *Decision) {
	starts := plan.Start[:0:0]
	for _, s := range plan.Start {
		if !m.Containers.Slots[s.Name].Killing {
			starts = append(starts, s)
		}
	}
	switch {
	case len(starts) == 0 && !plan.NewSandbox:
		m.stepResize(in, d)
		if m.Operation == None {
			m.stepVolumes(in.Now, d)
		}
	case !m.Volumes.Mounted && m.Retry.At.After(in.Now):
		d.wake(m.Retry.At)
	default:
		m.begin(d, Operation{Kind: Start, Plan: *plan, Starts: starts})
	}
}

// stepVolumes begins an update of the volumes if they are stale or one of them must be renewed, the pod has a
// ready sandbox, and the back-off after a failure has ended. No operation may be in progress.
func (m *Machine) stepVolumes(now time.Time, d *Decision) {
	next := m.Volumes.RefreshAt
	due := m.Volumes.Stale || !next.IsZero() && !next.After(now)
	switch {
	case !due || m.Containers.Observed.Sandbox() == nil:
		d.wake(next)
	case m.Retry.At.After(now):
		d.wake(m.Retry.At)
	default:
		d.wake(next)
		m.begin(d, Operation{Kind: RefreshVolumes})
	}
}
