package podstate

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/podfacts"
)

// Input is what a decision rests on. Nothing in it is changed.
type Input struct {
	Pod      *v1.Pod
	Observed *Observed
	// Health of containers, by ID.
	Health map[string]Health
	// Slots by container name.
	Slots map[string]Slot
	Now   time.Time
	// RestartingAll: all containers are to be removed and started anew, and that
	// has begun.
	RestartingAll bool
	// CrashMax bounds the waiting for a restart; zero is the usual bound.
	CrashMax time.Duration
}

// Kill is a container to stop, with the reason in words for the event.
type Kill struct {
	ID, Name, Message string
	// Replace: start it again whatever the restart policy says.
	Replace bool
	// Now: it gets no time to end.
	Now bool
}

// Start is a container to make and start.
type Start struct {
	Name    string
	Attempt uint32
	// Made is a container of that attempt that was made and never started, for its
	// maker or the runtime was killed in between. A call of the maker may still be
	// starting it, so that removing it could kill what runs. Empty: there is none.
	Made string
	// Stale is one that is of another sandbox or is wanted otherwise by now; it goes
	// first. Empty: there is none.
	Stale string
	// Crash is the back-off to remember once it has started.
	Crash BackOff
}

// Wait is a container that will be restarted at Until.
type Wait struct {
	Name  string
	Until time.Time
	Delay time.Duration
}

// Plan is what to do next. Kills go first; a sandbox is made only when no
// container runs in another; starts happen one after the other in order.
type Plan struct {
	// StopSandboxes are IDs of sandboxes that are in the way of a new one.
	StopSandboxes []string
	NewSandbox    bool
	Attempt       uint32
	Kill          []Kill
	Start         []Start
	BackOff       []Wait
	// RestartingAll: all containers are to be started anew. Once all are stopped
	// those of Remove are removed, in that order.
	RestartingAll bool
	Remove        []string
	// Finished: nothing runs that should, and nothing will: the pod is done.
	Finished bool
	// WakeAt is when time alone changes the plan; zero is never.
	WakeAt time.Time
}

func (p *Plan) wake(t time.Time) {
	if !t.IsZero() && (p.WakeAt.IsZero() || t.Before(p.WakeAt)) {
		p.WakeAt = t
	}
}

// finish plans nothing more to start, for the pod is done.
func (p *Plan) finish() {
	p.Finished = true
	p.Start, p.NewSandbox = nil, false
}

// Next computes what to do for a pod that is to run.
func Next(in Input) Plan {
	var p Plan
	o := in.Observed
	if in.restartingAll() {
		in.restartAll(&p)
		return p
	}

	sandbox := o.Sandbox()
	inPlace := func(c *Container) bool { return sandbox != nil && c.SandboxID == sandbox.ID }

	// Containers of a sandbox that is gone or not the newest go first.
	for i := range o.Containers {
		c := &o.Containers[i]
		if !inPlace(c) && (c.State == Running || c.State == Unknown) && !in.Slots[c.Name].Killing {
			p.Kill = append(p.Kill, Kill{ID: c.ID, Name: c.Name, Message: "Stopping container " + c.Name})
		}
	}
	if sandbox == nil {
		for i, s := range o.Sandboxes {
			if s.Ready && i > 0 {
				p.StopSandboxes = append(p.StopSandboxes, s.ID)
			}
		}
		if len(o.Sandboxes) > 0 {
			p.StopSandboxes = append(p.StopSandboxes, o.Sandboxes[0].ID)
			p.Attempt = o.Sandboxes[0].Attempt + 1
		}
	} else {
		for _, s := range o.Sandboxes[1:] {
			if s.Ready {
				p.StopSandboxes = append(p.StopSandboxes, s.ID)
			}
		}
	}

	initialized, failed := in.initContainers(&p, sandbox)
	// What failed for good did so in whatever sandbox.
	if failed || sandbox == nil && in.initFailed() {
		p.finish()
		return p
	}

	if initialized {
		keep := in.appContainers(&p, sandbox)
		if !keep {
			p.finish()
			return p
		}
		if in.ending(&p) {
			// Sidecars are not needed any more; those that have ended stay so.
			p.Start = slices.DeleteFunc(p.Start, func(s Start) bool { return in.isSidecar(s.Name) })
		}
	} else {
		// Not one container is left that could run: a pod whose sandbox died
		// after its containers had done their work needs no new one.
		if sandbox == nil && in.allDone() {
			p.finish()
			return p
		}
		if sandbox != nil {
			in.watchAppContainers(&p)
		}
	}
	if sandbox != nil {
		in.ephemeral(&p)
	}
	if sandbox == nil && len(p.Start)+len(p.BackOff) > 0 {
		p.NewSandbox = true
	}
	return p
}

// initFailed tells whether an init container has failed that is not started again.
func (in *Input) initFailed() bool {
	return slices.ContainsFunc(in.Pod.Spec.InitContainers, func(c v1.Container) bool {
		last := in.Observed.Latest(c.Name)
		return last != nil && !podfacts.Sidecar(&c) && last.State == Exited && last.ExitCode != 0 && !shouldRestart(in.Pod, &c, last.ExitCode)
	})
}

// allDone tells whether every app container has run and none is restarted.
func (in *Input) allDone() bool {
	for i := range in.Pod.Spec.Containers {
		c := &in.Pod.Spec.Containers[i]
		last := in.Observed.Latest(c.Name)
		if last == nil || last.State != Exited || shouldRestart(in.Pod, c, last.ExitCode) {
			return false
		}
	}
	return true
}

// initContainers plans the init containers. initialized is true once all app
// containers may start, failed when they never will.
func (in *Input) initContainers(p *Plan, sandbox *Sandbox) (initialized, failed bool) {
	inits := in.Pod.Spec.InitContainers
	here := func(name string) *Container {
		c := in.Observed.Latest(name)
		if c == nil || sandbox == nil || c.SandboxID != sandbox.ID {
			return nil
		}
		return c
	}
	// Once an app container has been made in this sandbox the init containers
	// are over, whatever is left of them.
	past := false
	for i := range in.Pod.Spec.Containers {
		past = past || here(in.Pod.Spec.Containers[i].Name) != nil
	}
	last := -1
	for i := range inits {
		if here(inits[i].Name) != nil {
			last = i
		}
	}
	for i := range inits {
		c := &inits[i]
		st := here(c.Name)
		if podfacts.Sidecar(c) {
			// One after which another has begun was there in its time: nobody waits for
			// it once more, should it have ended since.
			settled := past || i < last
			if runs := in.sidecar(p, c, st); !runs && !settled {
				return false, false
			}
			continue
		}
		if past || (st == nil && i < last) {
			continue
		}
		if st == nil {
			if sandbox == nil && in.allDone() && len(in.Pod.Spec.Containers) > 0 {
				return false, false
			}
			in.start(p, c)
			return false, false
		}
		if ended, failed := in.once(p, c, st, i < last); !ended {
			return false, failed
		}
	}
	return true, false
}

// sidecar plans one of the init containers that are restarted always; st is nil when it
// was never made. It tells whether the sidecar has started and stays.
func (in *Input) sidecar(p *Plan, c *v1.Container, st *Container) (runs bool) {
	switch {
	case st != nil && st.State == Running:
		stays := in.checkRunning(p, c, st, true)
		// One that is being stopped is waited for as one that is to be.
		return !(stays && !in.started(st)) && !p.killing(st.ID) && !in.Slots[c.Name].Killing
	case st != nil && st.State == Unknown:
		in.kill(p, c, st, "Init container "+inUnknown, true)
	default:
		in.start(p, c)
	}
	return false
}

// once plans an init container that has been made and is to end well once: ended is true
// when it has, or must have since a later one was made.
func (in *Input) once(p *Plan, c *v1.Container, st *Container, later bool) (ended, failed bool) {
	switch st.State {
	case Running:
		return false, false
	case Created:
		if later {
			return true, false
		}
		in.start(p, c)
		return false, false
	case Exited:
		if st.ExitCode == 0 || later {
			return true, false
		}
		if !shouldRestart(in.Pod, c, st.ExitCode) {
			return false, true
		}
		in.start(p, c)
		return false, false
	default:
		// Nobody knows what it exited with, if it did: rules do not count.
		if policy(in.Pod, c) == v1.RestartPolicyNever {
			return false, true
		}
		in.kill(p, c, st, "Init container "+inUnknown, true)
		return false, false
	}
}

// started tells whether the container counts as started: its postStart hook
// has ended and its startup probe, if any, has succeeded.
func (in *Input) started(st *Container) bool {
	h := in.Health[st.ID]
	return !h.PostStartRunning && (h.Startup == NoProbe || h.Startup == Success)
}

// checkRunning plans to stop a running container that must not go on, and
// tells whether it goes on.
func (in *Input) checkRunning(p *Plan, c *v1.Container, st *Container, always bool) bool {
	h := in.Health[st.ID]
	switch {
	case st.Hash != "" && st.Hash != Hash(c):
		in.kill(p, c, st, killMessage(c, always, "definition changed", true), true)
	case h.Liveness == Failure:
		in.fail(p, c, st, "liveness", always)
	case h.Startup == Failure:
		in.fail(p, c, st, "startup", always)
	default:
		return true
	}
	return false
}

// fail plans to stop a container whose probe failed. It is started again by the
// policy alone, whatever it exits with.
func (in *Input) fail(p *Plan, c *v1.Container, st *Container, probe string, always bool) {
	policy := policy(in.Pod, c)
	restarts := always || policy != v1.RestartPolicyNever
	in.kill(p, c, st, killMessage(c, always, "failed "+probe+" probe", restarts), restarts && !always && policy != v1.RestartPolicyAlways)
}

// inUnknown is why a container is stopped of which the runtime has lost track.
const inUnknown = `is in "unknown" state, try killing it before restart`

// killMessage says why a container is stopped.
func killMessage(c *v1.Container, sidecar bool, why string, restarts bool) string {
	switch {
	case sidecar:
		return "Init container " + c.Name + " " + why
	case restarts:
		return "Container " + c.Name + " " + why + ", will be restarted"
	}
	return "Container " + c.Name + " " + why
}

func (in *Input) kill(p *Plan, c *v1.Container, st *Container, message string, replace bool) {
	if in.Slots[c.Name].Killing {
		return
	}
	p.Kill = append(p.Kill, Kill{ID: st.ID, Name: c.Name, Message: message, Replace: replace})
}

func (p *Plan) killing(id string) bool {
	for _, k := range p.Kill {
		if k.ID == id {
			return true
		}
	}
	return false
}

// appContainers plans the app containers and tells whether one of them runs or
// will.
func (in *Input) appContainers(p *Plan, sandbox *Sandbox) (keep bool) {
	for i := range in.Pod.Spec.Containers {
		c := &in.Pod.Spec.Containers[i]
		st := in.Observed.Latest(c.Name)
		switch {
		case st == nil:
			in.start(p, c)
			keep = true
		case st.State == Running:
			if sandbox != nil && st.SandboxID == sandbox.ID {
				in.checkRunning(p, c, st, false)
			}
			keep = true
		case st.State == Created:
			// A start that was cut short, by a crash of the kubelet for one.
			in.start(p, c)
			keep = true
		case st.State == Unknown:
			in.kill(p, c, st, "Container "+inUnknown, true)
			keep = true
		case in.Slots[c.Name].ForceRestart == st.ID || shouldRestart(in.Pod, c, st.ExitCode):
			in.start(p, c)
			keep = true
		}
	}
	return keep
}

// ending tells whether all app containers have ended or are being stopped for
// good, as by a probe that failed where nothing is restarted. Hooks may run for long
// meanwhile.
func (in *Input) ending(p *Plan) bool {
	for i := range in.Pod.Spec.Containers {
		c := &in.Pod.Spec.Containers[i]
		st := in.Observed.Latest(c.Name)
		if st == nil || st.State != Running && st.State != Exited {
			return false
		}
		if in.Slots[c.Name].ForceRestart == st.ID {
			return false
		}
		if st.State == Exited {
			if shouldRestart(in.Pod, c, st.ExitCode) {
				return false
			}
			continue
		}
		stops := in.Slots[c.Name].Killing
		for _, k := range p.Kill {
			if k.ID == st.ID {
				stops = !k.Replace
			}
		}
		if !stops || len(c.RestartPolicyRules) > 0 || policy(in.Pod, c) != v1.RestartPolicyNever {
			return false
		}
	}
	return true
}

// isSidecar tells whether a container of that name is one.
func (in *Input) isSidecar(name string) bool {
	for i := range in.Pod.Spec.InitContainers {
		if c := &in.Pod.Spec.InitContainers[i]; c.Name == name {
			return podfacts.Sidecar(c)
		}
	}
	return false
}

// watchAppContainers stops app containers that fail while init containers are
// not through, as when a sidecar came back late.
func (in *Input) watchAppContainers(p *Plan) {
	for i := range in.Pod.Spec.Containers {
		c := &in.Pod.Spec.Containers[i]
		if st := in.Observed.Latest(c.Name); st != nil && st.State == Running {
			in.checkRunning(p, c, st, false)
		}
	}
}

// ephemeral plans ephemeral containers: each is started once.
func (in *Input) ephemeral(p *Plan) {
	for i := range in.Pod.Spec.EphemeralContainers {
		c := v1.Container(in.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		st := in.Observed.Latest(c.Name)
		if st == nil && !reportedBefore(in.Pod.Status.EphemeralContainerStatuses, c.Name) || st != nil && st.State == Created {
			in.start(p, &c)
		}
	}
}
