package podmachine

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/podstate"
)

// Containers are the observed sandboxes and containers of a pod, and what the kubelet remembers about
// each container.
type Containers struct {
	Observed podstate.Observed
	// Slots are what the kubelet remembers about containers, by container name.
	Slots map[string]podstate.Slot
	// Generation counts updates of Observed by operations, so that an older result from the runtime
	// does not overwrite them.
	Generation int

	hooks   map[string]bool      // IDs of containers whose postStart hook is running
	crashed map[string]time.Time // end of the restart back-off last reported, by container name
}

// withHooks marks, in health, the containers whose postStart hook is running, and returns health. health has the
// probe results by container ID. If it is nil, a map is allocated only if a hook is running.
func (c *Containers) withHooks(health map[string]podstate.Health) map[string]podstate.Health {
	if len(c.hooks) > 0 && health == nil {
		health = make(map[string]podstate.Health, len(c.hooks))
	}
	for id := range c.hooks {
		h := health[id]
		h.PostStartRunning = true
		health[id] = h
	}
	return health
}

// update applies change to what the kubelet remembers about the container of that name, such as its restart
// back-off, and stores the result.
func (c *Containers) update(name string, change func(*podstate.Slot)) {
	slot := c.Slots[name]
	change(&slot)
	c.Slots[name] = slot
}

// retry makes the next step retry failed starts immediately instead of at their retry time: those of the containers
// that wait with the reason or, if reason is empty, of all containers.
func (c *Containers) retry(reason string) {
	for name, s := range c.Slots {
		if !s.RetryAt.IsZero() && (reason == "" || s.Waiting != nil && s.Waiting.Reason == reason) {
			s.RetryAt = time.Time{}
			c.Slots[name] = s
		}
	}
}

// HookRunning reports whether the postStart hook of a container is running.
func (c *Containers) HookRunning(id string) bool { return c.hooks[id] }

// SandboxCreated adds the sandbox box, which the operation in progress has just created, as the newest one. All
// others count as stopped.
func (c *Containers) SandboxCreated(box podstate.Sandbox) {
	c.Generation++
	for i := range c.Observed.Sandboxes {
		c.Observed.Sandboxes[i].Ready = false
	}
	c.Observed.Sandboxes = append([]podstate.Sandbox{box}, c.Observed.Sandboxes...)
}

// Created adds the container st, which was just created, and stores crash, the restart back-off that applies when
// st exits. It must be called only after the creation: earlier, the start would be attributed to the previous
// container of the same name.
func (c *Containers) Created(st podstate.Container, crash podstate.BackOff) {
	c.Generation++
	c.update(st.Name, func(s *podstate.Slot) { s.Crash, s.Next = crash, 0 })
	if old := c.Observed.ByID(st.ID); old != nil {
		*old = st
	} else {
		c.Observed.Containers = append([]podstate.Container{st}, c.Observed.Containers...)
	}
}

// Observe updates the state of a container to st, as read from the runtime. known is false if the container
// was not observed before; nothing is stored then.
func (c *Containers) Observe(st podstate.Container) (known bool) {
	old := c.Observed.ByID(st.ID)
	if old == nil {
		return false
	}
	st.SandboxID = old.SandboxID
	*old = st
	return true
}

// Forget removes the container with that ID, because the runtime does not have it any more.
func (c *Containers) Forget(id string) {
	c.Generation++
	list := c.Observed.Containers
	for i := range list {
		if list[i].ID == id {
			c.Observed.Containers = append(list[:i:i], list[i+1:]...)
			return
		}
	}
}

// Starting records that the created container with that name and ID is being started. hook is true if the container
// has a postStart hook, which counts as running until HookFinished is called.
func (c *Containers) Starting(name, id string, hook bool) {
	c.update(name, func(s *podstate.Slot) { s.RetryAt = time.Time{} })
	if hook {
		c.hooks[id] = true
	}
}

// Started records that the container of that name was started, so that it does not wait any more.
func (c *Containers) Started(name string) {
	c.update(name, func(s *podstate.Slot) { s.Waiting, s.ForceRestart = nil, "" })
}

// HookFinished records that the postStart hook of the container with that ID does not run any more. Probes
// may start then.
func (c *Containers) HookFinished(id string) { delete(c.hooks, id) }

// Failed records with which reason and message the container of that name waits, because its creation or
// start has failed, and when the start is retried. The zero time means that only the restart back-off
// applies.
func (c *Containers) Failed(name, reason, message string, retryAt time.Time) {
	c.update(name, func(s *podstate.Slot) {
		s.Waiting = &v1.ContainerStateWaiting{Reason: reason, Message: message}
		s.RetryAt, s.CreateFailed = retryAt, false
	})
}

// CreateFailed records that the runtime has returned an error for the creation of a container. If the runtime has
// the container nevertheless, for example after a timeout, the container is then started without waiting for the
// retry time.
func (c *Containers) CreateFailed(name string) {
	c.update(name, func(s *podstate.Slot) { s.CreateFailed = true })
}

// forceRestart makes the container with that name and ID be restarted regardless of the restart policy when
// it has exited.
func (c *Containers) forceRestart(name, id string) {
	c.update(name, func(s *podstate.Slot) { s.ForceRestart = id })
}

// keepAttempts stores the next attempt number of each of the containers ids, which are going to be removed because
// a restart rule restarts all containers. The runtime will not report their attempts any more. Everything else that
// the kubelet remembers about these containers, such as the restart back-off, is reset.
func (c *Containers) keepAttempts(ids []string) {
	for _, id := range ids {
		if st := c.Observed.ByID(id); st != nil {
			c.Slots[st.Name] = podstate.Slot{Next: max(c.Slots[st.Name].Next, st.Attempt+1)}
		}
	}
}

// crashLoopBackOff is the reason of waiting containers in restart back-off.
const crashLoopBackOff = "CrashLoopBackOff"

// crashLoop stores the state CrashLoopBackOff for the container that b describes, whose restart must wait, and adds
// an event to d for each new back-off.
func (c *Containers) crashLoop(pod *v1.Pod, b podstate.Wait, d *Decision) {
	slot := c.Slots[b.Name]
	if slot.Waiting != nil && slot.Waiting.Reason == crashLoopBackOff && c.crashed[b.Name].Equal(b.Until) {
		return
	}
	c.crashed[b.Name] = b.Until
	slot.Waiting = &v1.ContainerStateWaiting{Reason: crashLoopBackOff, Message: podstate.CrashMessage(pod, b)}
	c.Slots[b.Name] = slot
	d.event(b.Name, true, "BackOff", "Back-off restarting failed container "+b.Name+" in pod "+pod.Name+"_"+pod.Namespace+"("+string(pod.UID)+")")
}

// replaceDelay is how long the exit of a container is not reported if the container is being
// replaced. It equals upstream's delay. If the new container starts within it, a pod whose image
// was changed stays ready.
const replaceDelay = time.Second

// replacementDeadline returns until when the update of the pod's status waits for the replacement of an
// exited container. Zero means that it does not wait.
func (c *Containers) replacementDeadline(now time.Time) time.Time {
	for _, slot := range c.Slots {
		old := c.Observed.ByID(slot.ForceRestart)
		if old == nil || old.State != podstate.Exited || slot.Waiting != nil {
			continue
		}
		if until := old.FinishedAt.Add(replaceDelay); now.Before(until) {
			return until
		}
	}
	return time.Time{}
}

// Volumes records whether the volumes of a pod are set up, and when they must be updated.
type Volumes struct {
	// Mounted: all volumes are set up. Stale: they must be updated.
	Mounted, Stale bool
	// RefreshAt is when a volume must be updated, for example to renew a token; zero means never.
	RefreshAt time.Time
}

// Updating clears Stale when the setup of the volumes begins. A ConfigMap that changes during the setup then marks
// the volumes as stale again, so that another update follows.
func (v *Volumes) Updating() { v.Stale = false }

// Updated records that all volumes are set up, and that they must be updated at refreshAt; zero means never.
func (v *Volumes) Updated(refreshAt time.Time) { v.Mounted, v.RefreshAt = true, refreshAt }
