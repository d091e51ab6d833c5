package podstate

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// restartingAll and restartingAllMessage are the reason and the message of containers that are removed because one
// container of the pod has exited with the action RestartAllContainers.
const (
	restartingAll        = "RestartingAllContainers"
	restartingAllMessage = "The container is removed because RestartAllContainers in place"
)

// matchingRuleAction returns the action of the container's first restart rule that matches the exit code, or
// "".
func matchingRuleAction(c *v1.Container, code int32) v1.ContainerRestartRuleAction {
	for _, rule := range c.RestartPolicyRules {
		if rule.ExitCodes == nil {
			continue
		}
		in := slices.Contains(rule.ExitCodes.Values, code)
		if in == (rule.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn) {
			return rule.Action
		}
	}
	return ""
}

// canRestartAll reports whether a restart rule of one of the pod's containers has the action
// RestartAllContainers: when the rule matches, all containers of the pod are removed and started again.
//
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-all-containers
func canRestartAll(pod *v1.Pod) bool {
	has := func(c v1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r v1.ContainerRestartRule) bool {
			return r.Action == v1.ContainerRestartRuleActionRestartAllContainers
		})
	}
	return slices.ContainsFunc(pod.Spec.Containers, has) || slices.ContainsFunc(pod.Spec.InitContainers, has)
}

// triggersRestartAll reports whether st has exited with an exit code that triggers RestartAllContainers.
func triggersRestartAll(c *v1.Container, st *Container) bool {
	return st.State == Exited && matchingRuleAction(c, st.ExitCode) == v1.ContainerRestartRuleActionRestartAllContainers
}

// restartingAll reports whether all containers of the pod are being restarted, because a restart rule with the
// action RestartAllContainers has matched, now or in an earlier step, and there are still containers to remove.
func (in *Input) restartingAll() bool {
	if !canRestartAll(in.Pod) {
		return false
	}
	for i := range in.Observed.Containers {
		st := &in.Observed.Containers[i]
		c, kind := Find(in.Pod, st.Name)
		if c == nil || kind == Ephemeral {
			continue
		}
		if in.RestartingAll || in.Observed.Latest(st.Name) == st && triggersRestartAll(c, st) {
			return true
		}
	}
	return false
}

// restartAll plans to stop all containers except ephemeral ones, and to remove them when they are
// stopped. Containers that trigger the restart are removed last, so that a restarted kubelet
// detects and continues it.
func (in *Input) restartAll(p *Plan) {
	p.RestartingAll = true
	var apps, inits, sourceApps, sourceInits []string
	for i := range in.Observed.Containers {
		st := &in.Observed.Containers[i]
		c, kind := Find(in.Pod, st.Name)
		if c == nil || kind == Ephemeral {
			continue
		}
		if st.State == Running || st.State == Unknown {
			if !in.Slots[c.Name].Killing {
				p.Kill = append(p.Kill, Kill{ID: st.ID, Name: c.Name, Message: "killing", Immediately: true})
			}
		}
		list := &apps
		switch {
		case kind == Init && triggersRestartAll(c, st):
			list = &sourceInits
		case kind == Init:
			list = &inits
		case triggersRestartAll(c, st):
			list = &sourceApps
		}
		*list = append(*list, st.ID)
	}
	p.Remove = slices.Concat(apps, inits, sourceApps, sourceInits)
}

// waitsForRestartAll reports whether the container with the status st was removed and will be restarted
// together with the other containers of the pod.
func waitsForRestartAll(st *v1.ContainerStatus) bool {
	return st.State.Waiting != nil && st.State.Waiting.Reason == restartingAll
}

// removedStatus returns the status of a container that was removed and will be restarted together with the
// other containers of the pod. next is the number of the next attempt, and old the container's previous
// status.
func removedStatus(c *v1.Container, old *v1.ContainerStatus, next uint32) v1.ContainerStatus {
	s := v1.ContainerStatus{Name: c.Name, Image: c.Image, RestartCount: int32(next)}
	s.State.Waiting = &v1.ContainerStateWaiting{Reason: restartingAll, Message: restartingAllMessage}
	if waitsForRestartAll(old) {
		s.LastTerminationState = *old.LastTerminationState.DeepCopy()
		return s
	}
	s.LastTerminationState.Terminated = removedState()
	return s
}

// removedState returns the termination of a container that was removed by RestartAllContainers.
func removedState() *v1.ContainerStateTerminated {
	return &v1.ContainerStateTerminated{Reason: restartingAll, Message: restartingAllMessage, ExitCode: 137}
}

// restartingCondition returns the condition AllContainersRestarting, which is true until all containers are
// removed.
func (in *StatusInput) restartingCondition() v1.PodCondition {
	c := v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionFalse}
	if !in.Terminating && !in.Stopped && in.restartingAll() {
		c.Status, c.Reason, c.Message = v1.ConditionTrue, "RestartAllContainersStarted", "container exited with restart policy rule"
	}
	return c
}

// causesRestartAll reports whether a container with the termination t is restarted by RestartAllContainers:
// it has triggered that, or was removed for it.
func causesRestartAll(c *v1.Container, t *v1.ContainerStateTerminated) bool {
	return t.Reason == restartingAll || matchingRuleAction(c, t.ExitCode) == v1.ContainerRestartRuleActionRestartAllContainers
}
