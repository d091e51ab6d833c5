package podmachine

import (
	"time"

	"hyperkube/components/kubelet/pod/podstate"
)

// OperationKind is a kind of long-running work on a whole pod. There is at most one operation at a
// time.
type OperationKind int

// None and the other constants are the kinds of operations. None means that no operation is in progress.
const (
	None OperationKind = iota
	// Start sets up the volumes, creates a sandbox if required, and starts containers in order.
	Start
	// RemoveContainers removes exited containers, so that all containers can be restarted.
	RemoveContainers
	// RefreshVolumes writes the current contents into the volumes of a running pod, for example after a ConfigMap
	// has changed.
	RefreshVolumes
	// ResizePod sets the limits of the pod and its running containers.
	ResizePod
	// StopSandboxes stops all sandboxes of a terminating pod.
	StopSandboxes
	// CleanUp releases the devices of a stopped pod, and removes its volumes and its cgroup.
	CleanUp
	// Discard removes the containers and logs of a terminated pod whose object still exists.
	Discard
	// DeleteObject deletes the API object of a pod that has terminated and has a deletion timestamp.
	DeleteObject
	// RemoveAll removes the sandboxes, containers and logs of a terminated pod. It is the last step of the
	// termination.
	RemoveAll
)

// String returns the kind as it is written in transcripts and logs.
func (k OperationKind) String() string {
	return [...]string{"none", "start", "remove-containers", "refresh-volumes", "resize", "stop-sandboxes", "clean-up", "discard", "delete-object", "remove-all"}[k]
}

// terminates reports whether the operation is a step of the pod's termination. The start of the termination
// cancels all other operations.
func (k OperationKind) terminates() bool { return k >= StopSandboxes }

// Operation is an operation that the caller must start, with its arguments.
type Operation struct {
	Kind OperationKind
	// Plan and Starts are the arguments of Start: Starts are the containers of the plan to start
	// now.
	Plan   podstate.Plan
	Starts []podstate.Start
	// Remove are the IDs of containers for RemoveContainers, in order.
	Remove []string
	// Resize is the argument of ResizePod.
	Resize ResizeRequest
}

// Outcome is how an operation of the worker has finished, which determines what the Machine decides next.
type Outcome int

// Succeeded and the other constants are the outcomes of an operation. Interrupted means that the operation was
// cancelled before it finished, and StillRunning that processes of a terminating pod were found, so that its
// containers must be stopped again.
const (
	Succeeded Outcome = iota
	Failed
	Interrupted
	StillRunning
)

// begin adds the operation to the decision and records that it is in progress.
func (m *Machine) begin(d *Decision, o Operation) {
	m.Operation, d.Operation = o.Kind, o
}

// minMountBackoff and maxMountBackoff bound the delay before a failed preparation of a pod, such as the setup of
// volumes, is retried, and minStepBackoff and maxStepBackoff that before a failed step of the termination is.
const (
	minMountBackoff = 500 * time.Millisecond
	maxMountBackoff = 2*time.Minute + 2*time.Second
	minStepBackoff  = 100 * time.Millisecond
	maxStepBackoff  = 30 * time.Second
)

// removeRetryInterval is the delay before a failed removal of containers is retried.
const removeRetryInterval = time.Second

// Retry is the exponential back-off of operations on a whole pod.
type Retry struct {
	// At is when the next attempt may start; zero means immediately.
	At  time.Time
	gap time.Duration
}

// fail doubles the delay before the next attempt, within the bounds least and most.
func (r *Retry) fail(now time.Time, least, most time.Duration) {
	r.gap = min(max(2*r.gap, least), most)
	r.At = now.Add(r.gap)
}

// RetryNow makes a failed operation, such as the setup of volumes, be retried immediately. It reports whether
// one is waiting; then the caller must call Step.
func (m *Machine) RetryNow() bool {
	waits := m.Operation == None && !m.Retry.At.IsZero()
	if waits {
		m.Retry.At = time.Time{}
	}
	return waits
}

// PrepareFailed records that the operation Start could not set up the volumes or create the sandbox, and
// increases the back-off.
func (m *Machine) PrepareFailed(now time.Time) {
	m.Retry.fail(now, minMountBackoff, maxMountBackoff)
	m.Volumes.Mounted = false
}

// Reset clears the back-off after a success. The operation Start resets it when the volumes are set up and
// the sandbox exists, because later failures affect only one container.
func (r *Retry) Reset() { *r = Retry{} }

// Finish records that the operation in progress has finished with the outcome, and when a failed one is
// retried. The failures of Start are recorded by PrepareFailed and Containers.Failed, and ResizePod is
// finished by FinishResize.
func (m *Machine) Finish(outcome Outcome, now time.Time) {
	kind := m.Operation
	m.Operation = None
	switch {
	case kind == RemoveContainers && outcome == Failed:
		m.removeAt = now.Add(removeRetryInterval)
	case kind == RefreshVolumes && outcome == Failed:
		m.Volumes.Stale = true
		m.Retry.fail(now, minMountBackoff, maxMountBackoff)
	case kind == RefreshVolumes && outcome == Succeeded:
		m.Retry.Reset()
	case kind.terminates() && outcome != Interrupted:
		m.finishStep(kind, outcome, now)
	}
}
