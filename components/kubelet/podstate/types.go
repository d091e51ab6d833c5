// Package podstate decides what happens to a pod: from what is wanted and what
// the runtime shows it computes what to do next (Next) and what to say of it
// (Status). It is pure: no goroutines, no input or output, no clock.
//
// The rules are those of the pod lifecycle page of the Kubernetes documentation.
package podstate

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// State of a container as the runtime sees it.
type State int

// The states of a container. Unknown is one that the runtime lost track of.
const (
	Unknown State = iota
	Created
	Running
	Exited
)

// Container is one attempt at one container of a pod.
type Container struct {
	ID, SandboxID, Name string
	// Attempt counts from 0: the number of restarts before this one.
	Attempt                          uint32
	State                            State
	CreatedAt, StartedAt, FinishedAt time.Time
	ExitCode                         int32
	Reason, Message                  string
	// Image is as the pod named it where the runtime tells, ImageID as the
	// runtime resolved it.
	Image, ImageID string
	// Hash is that of the container's definition when it was made.
	Hash    string
	LogPath string

	TerminationMessagePath, TerminationMessagePolicy, TerminationMessageFile string

	// Resources and User are nil when the runtime does not tell.
	Resources *Resources
	User      *User
}

// Resources are a container's actual limits.
type Resources struct {
	CPUShares, CPUQuota, CPUPeriod, MemoryLimit int64
}

// User is whom a container's first process was started as.
type User struct {
	UID, GID int64
	Groups   []int64
}

// Sandbox is one attempt at a pod's sandbox.
type Sandbox struct {
	ID          string
	Attempt     uint32
	Ready       bool
	HostNetwork bool
	CreatedAt   time.Time
	// IPs are empty with the host's network.
	IPs []string
	// Lost: it should have an address and has none, so that nobody reaches what runs in it.
	Lost bool
}

// Observed is all that the runtime has of a pod, newest first.
type Observed struct {
	Sandboxes  []Sandbox
	Containers []Container
}

// Latest returns the newest attempt at the container of that name, or nil.
func (o *Observed) Latest(name string) *Container {
	for i := range o.Containers {
		if o.Containers[i].Name == name {
			return &o.Containers[i]
		}
	}
	return nil
}

// Previous returns the attempt before the newest, or nil.
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

// ByID returns the container of that ID, or nil.
func (o *Observed) ByID(id string) *Container {
	for i := range o.Containers {
		if o.Containers[i].ID == id {
			return &o.Containers[i]
		}
	}
	return nil
}

// Sandbox returns the newest sandbox if it is ready and of use, else nil.
func (o *Observed) Sandbox() *Sandbox {
	if len(o.Sandboxes) == 0 || !o.Sandboxes[0].Ready || o.Sandboxes[0].Lost {
		return nil
	}
	return &o.Sandboxes[0]
}

// AnyRunning tells whether a container runs or may.
func (o *Observed) AnyRunning() bool {
	for i := range o.Containers {
		if s := o.Containers[i].State; s == Running || s == Unknown {
			return true
		}
	}
	return false
}

// Result is what a probe found last.
type Result int

// Results of a probe. NoProbe: there is none. Pending: it has not said yet.
const (
	NoProbe Result = iota
	Pending
	Success
	Failure
)

// Health is what the probes say of one running container.
type Health struct {
	Startup, Liveness, Readiness Result
	// PostStartRunning is true until the postStart hook has ended.
	PostStartRunning bool
}

// Slot is what the kubelet remembers of one container of a pod between steps.
// It is lost when the kubelet restarts.
type Slot struct {
	// Waiting is why the container does not run, nil when nothing is known.
	Waiting *v1.ContainerStateWaiting
	// RetryAt is when a start that failed may be tried again.
	RetryAt time.Time
	// Unmade: it is about making the container. One that is there all the same, for the
	// call that makes it was another's or was given up, need not wait.
	Unmade bool
	// Crash is the back-off of restarts.
	Crash BackOff
	// ForceRestart asks for a restart whatever the restart policy says, for
	// the container's definition changed. It is the ID of the container that
	// is to be replaced.
	ForceRestart string
	// Next is set from when the container was removed to be started anew with all
	// others until it is: the attempt that comes, from 1.
	Next uint32
	// Killing is true while the container is being stopped.
	Killing bool
}

// BackOff doubles from Base to Max.
type BackOff struct {
	Delay   time.Duration
	Updated time.Time
	// Max bounds Delay; zero is CrashMax.
	Max time.Duration
}

// Limits of the back-off of restarts.
const (
	crashBase = 10 * time.Second
	CrashMax  = 300 * time.Second
)

// Until returns when a restart may happen after an exit at finished. A zero
// time: at once.
func (b BackOff) Until(finished, now time.Time) time.Time {
	if b.Delay == 0 || now.Sub(b.Updated) > 2*CrashMax {
		return time.Time{}
	}
	if finished.After(now) {
		// The clock was set back since; the start before was told by one that
		// never is.
		finished = b.Updated
	}
	return finished.Add(b.Delay)
}

// Next returns the back-off after one more start at now.
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

// Kind says which list of the pod's spec a container is in.
type Kind int

// The kinds of containers.
const (
	App Kind = iota
	Init
	Ephemeral
)

// Find returns the container of that name and its kind, or nil. An ephemeral
// container is returned as the container it is made as.
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
