package podstate

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/pod/podutil"
)

// Input is the input of Next: the desired pod, the runtime's state, and what the kubelet remembers. Next does
// not modify it.
type Input struct {
	Pod      *v1.Pod
	Observed *Observed
	// Health is the latest probe results of running containers, by container ID.
	Health map[string]Health
	// Slots are what the kubelet remembers about containers, by container name.
	Slots map[string]Slot
	Now   time.Time
	// RestartingAll: the removal of all containers in order to restart them has begun.
	RestartingAll bool
	// CrashMax is the maximum restart back-off. Zero means the default.
	CrashMax time.Duration
}

// Kill is a container to stop. Message is the message of the event.
type Kill struct {
	ID, Name, Message string
	// Replace: the container is restarted regardless of the restart policy.
	Replace bool
	// Immediately: the container gets no grace period.
	Immediately bool
}

// Start is a container that must be created, if that has not happened yet, and started.
type Start struct {
	Name    string
	Attempt uint32
	// Created is the ID of a container of this attempt that was created but not started, because the kubelet
	// or the runtime was killed in between. It is empty if there is none. It is started instead of creating
	// another one: a call of the previous kubelet may still be starting it, so removing it could kill a
	// running container.
	Created string
	// Stale is the ID of a container that was created but not started in another sandbox or from an outdated
	// spec. It is removed before the new one is created. It is empty if there is none.
	Stale string
	// Crash is the restart back-off to store in the container's slot when the container is created.
	Crash BackOff
}

// Wait is a container that is in restart back-off: it is started again at Until, after a delay of Delay since its
// exit.
type Wait struct {
	Name  string
	Until time.Time
	Delay time.Duration
}

// Plan describes what to do next with a pod: the containers in Kill are stopped first, then a new sandbox is
// created if required, but only after no container runs in another one, and then the containers in Start are
// started sequentially, in order.
type Plan struct {
	// StopSandboxes are the IDs of sandboxes that must be stopped before a new one is created.
	StopSandboxes []string
	NewSandbox    bool
	Attempt       uint32
	Kill          []Kill
	Start         []Start
	BackOff       []Wait
	// RestartingAll: all containers are to be restarted. When all are stopped, the containers of
	// Remove are removed in that order.
	RestartingAll bool
	Remove        []string
	// Finished: no container runs or will be started. The pod is complete.
	Finished bool
	// WakeAt is when the plan changes because of time alone; zero means never.
	WakeAt time.Time
}

// wake makes p.WakeAt, when the plan must be computed again, t if t is earlier. The zero time is ignored.
func (p *Plan) wake(t time.Time) {
	if !t.IsZero() && (p.WakeAt.IsZero() || t.Before(p.WakeAt)) {
		p.WakeAt = t
	}
}

// finish marks the pod as complete: no container is started any more.
func (p *Plan) finish() {
	p.Finished = true
	p.Start, p.NewSandbox = nil, false
}

// Next computes the plan for a pod that is not terminating: which containers and sandboxes to stop, and which
// containers to start, in a new sandbox if the current one is missing or has stopped.
func Next(in Input) Plan {
	var p Plan
	o := in.Observed
	if in.restartingAll() {
		in.restartAll(&p)
		return p
	}

	sandbox := o.Sandbox()
	inPlace := func(c *Container) bool { return sandbox != nil && c.SandboxID == sandbox.ID }

	// Kill containers of sandboxes other than the current one first.
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
	// A permanent failure does not depend on the sandbox.
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
		if in.appsTerminating(&p) {
			// Sidecars that have exited are not restarted, because they are not needed any more.
			p.Start = slices.DeleteFunc(p.Start, func(s Start) bool { return in.isSidecar(s.Name) })
		}
	} else {
		// No container is left to run. A pod whose sandbox stopped after its containers had
		// completed needs no new sandbox.
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

// initFailed reports whether an init container has failed permanently: its restart policy does not permit a
// restart. Sidecars are excluded.
func (in *Input) initFailed() bool {
	return slices.ContainsFunc(in.Pod.Spec.InitContainers, func(c v1.Container) bool {
		last := in.Observed.Latest(c.Name)
		return last != nil && !podutil.Sidecar(&c) && last.State == Exited && last.ExitCode != 0 && !shouldRestart(in.Pod, &c, last.ExitCode)
	})
}

// allDone reports whether every app container has exited and its restart policy does not permit a restart.
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

// initContainers adds the next init containers to start, and those to stop, to the plan p. sandbox is the current
// sandbox, or nil. initialized is true if all have completed, so that the app containers may start. failed is true
// if one has failed permanently, so that the app containers never start.
func (in *Input) initContainers(p *Plan, sandbox *Sandbox) (initialized, failed bool) {
	inits := in.Pod.Spec.InitContainers
	here := func(name string) *Container {
		c := in.Observed.Latest(name)
		if c == nil || sandbox == nil || c.SandboxID != sandbox.ID {
			return nil
		}
		return c
	}
	// If an app container was created in this sandbox, initialization is complete, even if init
	// containers were removed.
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
		if podutil.Sidecar(c) {
			// If a later container was created, this sidecar had started before. Do not wait for it
			// again if it has exited since.
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
		if ended, failed := in.regularInitContainer(p, c, st, i < last); !ended {
			return false, failed
		}
	}
	return true, false
}

// sidecar adds the start or stop of a sidecar to the plan p, if required. st is its state in the current sandbox,
// or nil if it was never created. runs is true if the sidecar has started and is not being stopped, so that the
// next container may start.
func (in *Input) sidecar(p *Plan, c *v1.Container, st *Container) (runs bool) {
	switch {
	case st != nil && st.State == Running:
		stays := in.checkRunning(p, c, st, true)
		// A sidecar that is being stopped is not started.
		return !(stays && !in.started(st)) && !p.killing(st.ID) && !in.Slots[c.Name].Killing
	case st != nil && st.State == Unknown:
		in.kill(p, c, st, "Init container "+inUnknownState, true)
	default:
		in.start(p, c)
	}
	return false
}

// regularInitContainer adds the start or stop of an init container that must complete once to the plan p, if
// required. st is its state, which exists. later is true if a later init container was created: the container then
// counts as completed, although its exit code may be lost. ended is true if the container has completed, and failed
// if it has failed permanently.
func (in *Input) regularInitContainer(p *Plan, c *v1.Container, st *Container, later bool) (ended, failed bool) {
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
		// The exit code is unknown, so restart rules do not apply.
		if policy(in.Pod, c) == v1.RestartPolicyNever {
			return false, true
		}
		in.kill(p, c, st, "Init container "+inUnknownState, true)
		return false, false
	}
}

// started reports whether the container counts as started: its postStart hook has finished and its
// startup probe, if any, has succeeded.
func (in *Input) started(st *Container) bool {
	h := in.Health[st.ID]
	return !h.PostStartRunning && (h.Startup == NoProbe || h.Startup == Success)
}

// checkRunning adds a running container to those that the plan p stops if its definition has changed, or if its
// startup or liveness probe has failed. always is true for a sidecar, which is always restarted. It returns true if
// the container continues to run.
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

// fail adds a container to those that the plan p stops, because the startup or liveness probe has failed. always is
// true for a sidecar, which is always restarted. Whether another container is restarted depends only on the restart
// policy, not on the exit code.
func (in *Input) fail(p *Plan, c *v1.Container, st *Container, probe string, always bool) {
	policy := policy(in.Pod, c)
	restarts := always || policy != v1.RestartPolicyNever
	in.kill(p, c, st, killMessage(c, always, "failed "+probe+" probe", restarts), restarts && !always && policy != v1.RestartPolicyAlways)
}

// inUnknownState is the end of the event message for a container that is stopped because the runtime does not
// know its state.
const inUnknownState = `is in "unknown" state, try killing it before restart`

// killMessage returns the event message for a container that is stopped. why is the reason. restarts is true if the
// container is restarted, which the message then announces; upstream's message for a sidecar does not.
func killMessage(c *v1.Container, sidecar bool, why string, restarts bool) string {
	switch {
	case sidecar:
		return "Init container " + c.Name + " " + why
	case restarts:
		return "Container " + c.Name + " " + why + ", will be restarted"
	}
	return "Container " + c.Name + " " + why
}

// kill adds a container to those that the plan p stops, unless it is already being stopped. message is that of the
// event. With replace, the container is restarted regardless of the restart policy.
func (in *Input) kill(p *Plan, c *v1.Container, st *Container, message string, replace bool) {
	if in.Slots[c.Name].Killing {
		return
	}
	p.Kill = append(p.Kill, Kill{ID: st.ID, Name: c.Name, Message: message, Replace: replace})
}

// killing reports whether the plan stops the container with the ID.
func (p *Plan) killing(id string) bool {
	for _, k := range p.Kill {
		if k.ID == id {
			return true
		}
	}
	return false
}

// appContainers adds the app containers to start or to stop to the plan p. sandbox is the pod's current sandbox, or
// nil. keep is false if no app container runs or will be started, so that the pod is complete.
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
			// The start was interrupted, for example by a crash of the kubelet.
			in.start(p, c)
			keep = true
		case st.State == Unknown:
			in.kill(p, c, st, "Container "+inUnknownState, true)
			keep = true
		case in.Slots[c.Name].ForceRestart == st.ID || shouldRestart(in.Pod, c, st.ExitCode):
			in.start(p, c)
			keep = true
		}
	}
	return keep
}

// appsTerminating reports whether all app containers have exited or are being stopped without restart, for
// example after a failed probe with the restart policy Never. Their preStop hooks may still be
// running.
func (in *Input) appsTerminating(p *Plan) bool {
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

// isSidecar reports whether the container of that name is a sidecar.
func (in *Input) isSidecar(name string) bool {
	for i := range in.Pod.Spec.InitContainers {
		if c := &in.Pod.Spec.InitContainers[i]; c.Name == name {
			return podutil.Sidecar(c)
		}
	}
	return false
}

// watchAppContainers adds the running app containers whose probes have failed or whose definition has changed to
// those that the plan p stops. It is called while initialization is incomplete, for example when a sidecar
// restarts: no app containers are started then, but failing ones must be stopped.
func (in *Input) watchAppContainers(p *Plan) {
	for i := range in.Pod.Spec.Containers {
		c := &in.Pod.Spec.Containers[i]
		if st := in.Observed.Latest(c.Name); st != nil && st.State == Running {
			in.checkRunning(p, c, st, false)
		}
	}
}

// ephemeral adds the ephemeral containers that have never run to the plan. They are not restarted.
func (in *Input) ephemeral(p *Plan) {
	for i := range in.Pod.Spec.EphemeralContainers {
		c := v1.Container(in.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		st := in.Observed.Latest(c.Name)
		if st == nil && !reportedBefore(in.Pod.Status.EphemeralContainerStatuses, c.Name) || st != nil && st.State == Created {
			in.start(p, &c)
		}
	}
}
