package podstate

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// shouldRestart reports whether a container that exited with code is restarted. The container's first restart
// rule that matches takes precedence over its restart policy.
func shouldRestart(pod *v1.Pod, c *v1.Container, code int32) bool {
	switch matchingRuleAction(c, code) {
	case v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers:
		return true
	}
	switch policy(pod, c) {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return code != 0
	}
	return true
}

// policy returns the restart policy of a container, which defaults to that of its pod.
func policy(pod *v1.Pod, c *v1.Container) v1.RestartPolicy {
	if c.RestartPolicy != nil {
		return v1.RestartPolicy(*c.RestartPolicy)
	}
	return pod.Spec.RestartPolicy
}

// reportedBefore reports whether the container of that name has run before: the list of statuses has its ID.
func reportedBefore(list []v1.ContainerStatus, name string) bool {
	for i := range list {
		if list[i].Name == name {
			return list[i].ContainerID != ""
		}
	}
	return false
}

// start adds the container c to those that the plan starts. If it is in restart back-off, start adds it to the
// plan's BackOff instead. If it must wait for that or for the retry of a failed start, start sets the plan's
// WakeAt. A container that is being stopped is ignored.
func (in *Input) start(p *Plan, c *v1.Container) {
	slot := in.Slots[c.Name]
	if slot.Killing {
		return
	}
	last := in.Observed.Latest(c.Name)
	created := last != nil && last.State == Created
	if slot.RetryAt.After(in.Now) && !(slot.CreateFailed && created) {
		p.wake(slot.RetryAt)
		return
	}
	s := Start{Name: c.Name, Attempt: in.nextAttempt(c.Name), Crash: slot.Crash}
	if created {
		s.Attempt = last.Attempt
		if box := in.Observed.Sandbox(); box != nil && box.ID == last.SandboxID && last.Hash == Hash(c) {
			s.Created = last.ID
		} else {
			s.Stale = last.ID
		}
	}
	if last != nil && last.State == Exited {
		if last.Hash != "" && last.Hash != Hash(c) {
			// A container with a changed definition has not failed yet.
			slot.Crash = BackOff{}
		}
		if until := slot.Crash.Until(last.FinishedAt, in.Now); until.After(in.Now) {
			p.BackOff = append(p.BackOff, Wait{Name: c.Name, Until: until, Delay: slot.Crash.Delay})
			p.wake(until)
			return
		}
		crash := slot.Crash
		crash.Max = in.CrashMax
		s.Crash = crash.Next(in.Now)
	}
	p.Start = append(p.Start, s)
}

// nextAttempt returns the attempt number of the next container of that name: one more than the highest in the
// runtime. If the runtime has no such container, it is the number kept for a container that was removed to be
// restarted, or follows from the restart count in the pod's status. The first attempt is 0.
func (in *Input) nextAttempt(name string) uint32 {
	next := uint32(0)
	for i := range in.Observed.Containers {
		if c := &in.Observed.Containers[i]; c.Name == name && c.Attempt >= next {
			next = c.Attempt + 1
		}
	}
	if n := in.Slots[name].Next; next == 0 && n > 0 {
		return n
	}
	if st := StatusOf(&in.Pod.Status, name); st != nil && st.ContainerID != "" && uint32(max(st.RestartCount, 0)) >= next {
		if next == 0 {
			next = uint32(st.RestartCount) + 1
		}
	} else if st != nil && next == 0 && waitsForRestartAll(st) {
		// The restart count of the status already includes the next start.
		next = uint32(max(st.RestartCount, 0))
	}
	return next
}

// StatusOf returns the status of the container of that name and any kind, or nil. It points into s.
func StatusOf(s *v1.PodStatus, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// CrashMessage returns the message of the state Waiting of a container in restart back-off, as upstream.
func CrashMessage(pod *v1.Pod, w Wait) string {
	return fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)", w.Delay, w.Name, pod.Name, pod.Namespace, pod.UID)
}
