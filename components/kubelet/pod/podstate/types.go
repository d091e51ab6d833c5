// Package podstate decides what happens to a pod: from the desired pod and the runtime's state it
// computes the next actions (Next) and the status (Status). It is pure: it has no goroutines, no
// I/O and no clock.
//
// The rules are those of the pod lifecycle page of the Kubernetes documentation.
package podstate

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// State is the state of a container in the runtime: Created, Running, Exited or Unknown.
type State int

// Unknown, Created, Running and Exited are the states of a container in the runtime. Unknown means that the runtime
// does not know the state.
const (
	Unknown State = iota
	Created
	Running
	Exited
)

// Container is the state of one container in the runtime. Each restart of a container in the pod spec creates a new
// one with a higher attempt number.
type Container struct {
	ID, SandboxID, Name string
	// Attempt is the number of previous starts.
	Attempt                          uint32
	State                            State
	CreatedAt, StartedAt, FinishedAt time.Time
	ExitCode                         int32
	Reason, Message                  string
	// Image is the image name of the pod spec, if the runtime reports it. ImageID is the resolved
	// image.
	Image, ImageID string
	// Hash is the hash of the container's definition at its creation.
	Hash    string
	LogPath string

	TerminationMessagePath, TerminationMessagePolicy, TerminationMessageFile string

	// Resources and User are nil if the runtime does not report them.
	Resources *Resources
	User      *User
}

// Resources are the limits of a container's cgroup. CPUQuota and CPUPeriod are in microseconds, and
// MemoryLimit is in bytes.
type Resources struct {
	CPUShares, CPUQuota, CPUPeriod, MemoryLimit int64
}

// User is the user of a container's first process.
type User struct {
	UID, GID int64
	Groups   []int64
}

// Sandbox is the state of one sandbox of a pod in the runtime. A pod whose sandbox stops gets a new one with a
// higher attempt number.
type Sandbox struct {
	ID          string
	Attempt     uint32
	Ready       bool
	HostNetwork bool
	CreatedAt   time.Time
	// IPs is empty with the host network.
	IPs []string
	// Lost: the sandbox has no IP address although it needs one, so that its containers are
	// unreachable.
	Lost bool
}

// Observed is the state of a pod in the runtime: its sandboxes and containers, newest first.
type Observed struct {
	Sandboxes  []Sandbox
	Containers []Container
}

// Latest returns the newest attempt of the container of that name, or nil if the runtime has none. The result
// points into o.
func (o *Observed) Latest(name string) *Container {
	for i := range o.Containers {
		if o.Containers[i].Name == name {
			return &o.Containers[i]
		}
	}
	return nil
}

// Previous returns the second newest attempt of the container of that name, or nil. The result points into o.
func (o *Observed) Previous(name string) *Container {
	seen := false
	for i := range o.Containers {
		if o.Containers[i].Name != name {
			continue
		}
		if seen {
			return &o.Containers[i]
		}
		seen = true
	}
	return nil
}

// ByID returns the container with that ID, or nil. The result points into o.
func (o *Observed) ByID(id string) *Container {
	for i := range o.Containers {
		if o.Containers[i].ID == id {
			return &o.Containers[i]
		}
	}
	return nil
}

// Sandbox returns the newest sandbox if it is ready and not lost, otherwise nil.
func (o *Observed) Sandbox() *Sandbox {
	if len(o.Sandboxes) == 0 || !o.Sandboxes[0].Ready || o.Sandboxes[0].Lost {
		return nil
	}
	return &o.Sandboxes[0]
}

// AnyRunning reports whether a container is running or its state is unknown.
func (o *Observed) AnyRunning() bool {
	for i := range o.Containers {
		if s := o.Containers[i].State; s == Running || s == Unknown {
			return true
		}
	}
	return false
}

// Result is the latest result of a probe of a container, after its thresholds were applied.
type Result int

// NoProbe means that the container does not have the probe, and Pending that the probe has no result yet.
const (
	NoProbe Result = iota
	Pending
	Success
	Failure
)

// Health is the latest results of the probes of a running container, and whether its postStart hook is still
// running.
type Health struct {
	Startup, Liveness, Readiness Result
	// PostStartRunning is true until the postStart hook has finished.
	PostStartRunning bool
}

// Slot is what the kubelet remembers about one container name of a pod between steps, across attempts. It is
// lost when the kubelet restarts.
type Slot struct {
	// Waiting is the state to report for a container that is not running, such as CrashLoopBackOff; nil if no
	// cause is known.
	Waiting *v1.ContainerStateWaiting
	// RetryAt is when a failed start may be retried.
	RetryAt time.Time
	// CreateFailed: the creation of the container has failed. If the container exists nevertheless,
	// because another call has created it or the call timed out, it need not wait for RetryAt.
	CreateFailed bool
	// Crash is the restart back-off after the container's exits.
	Crash BackOff
	// ForceRestart is the ID of a container that must be replaced regardless of the restart policy,
	// for example because its definition has changed.
	ForceRestart string
	// Next is the next attempt number, at least 1, of a container that was removed to be restarted
	// with all others. It is zero otherwise.
	Next uint32
	// Killing is true while the container is being stopped.
	Killing bool
}

// BackOff is the exponential restart back-off of a container: Delay doubles with each start up to Max.
// Updated is the time of the last start. The zero value means that the container has not been restarted.
type BackOff struct {
	Delay   time.Duration
	Updated time.Time
	// Max is the maximum of Delay. Zero means CrashMax.
	Max time.Duration
}

// crashBase and CrashMax are the first and the longest delay of the restart back-off of a container. After
// 2*CrashMax without a restart, the back-off starts again with crashBase.
const (
	crashBase = 10 * time.Second
	CrashMax  = 300 * time.Second
)

// Until returns when a container that exited at finished may be restarted. The zero time means immediately: the
// container has not been restarted before, or not within 2*CrashMax before now.
func (b BackOff) Until(finished, now time.Time) time.Time {
	if b.Delay == 0 || now.Sub(b.Updated) > 2*CrashMax {
		return time.Time{}
	}
	if finished.After(now) {
		// The clock was set back after the exit. Use the time of the last start, whose monotonic
		// clock reading is not affected.
		finished = b.Updated
	}
	return finished.Add(b.Delay)
}

// Next returns the back-off after one more start of the container at now. Its delay applies to the next exit.
func (b BackOff) Next(now time.Time) BackOff {
	most := b.Max
	if most == 0 {
		most = CrashMax
	}
	next := BackOff{Delay: min(crashBase, most), Updated: now, Max: b.Max}
	if b.Delay != 0 && now.Sub(b.Updated) <= 2*CrashMax {
		next.Delay = min(2*b.Delay, most)
	}
	return next
}

// Kind is the kind of a container: in which list of the pod spec it is.
type Kind int

// App, Init and Ephemeral are the kinds of containers. Init includes sidecars.
const (
	App Kind = iota
	Init
	Ephemeral
)

// Find returns the container of that name in the pod spec and its kind, or nil. The result points into pod,
// except for an ephemeral container, which is converted.
func Find(pod *v1.Pod, name string) (*v1.Container, Kind) {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i], App
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return &pod.Spec.InitContainers[i], Init
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			c := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			return &c, Ephemeral
		}
	}
	return nil, App
}
