package podstate

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// What is said of a pod whose containers are all started anew because one of
// them has exited as its rules say.
const (
	restartingAll        = "RestartingAllContainers"
	restartingAllMessage = "The container is removed because RestartAllContainers in place"
)

// matching returns the action of the first rule of a container that is about an
// exit with code; empty: none is.
func matching(c *v1.Container, code int32) v1.ContainerRestartRuleAction {
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

// canRestartAll tells whether a container of the pod has a rule by which all
// are restarted.
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

// source tells whether st has exited as a rule says by which all containers
// are restarted.
func source(c *v1.Container, st *Container) bool {
	return st.State == Exited && matching(c, st.ExitCode) == v1.ContainerRestartRuleActionRestartAllContainers
}

// restartingAll tells whether all containers are being restarted: one of them
// asks for it, or did, and something is left to remove.
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
		if in.RestartingAll || in.Observed.Latest(st.Name) == st && source(c, st) {
			return true
		}
	}
	return false
}

// restartAll plans to stop all containers but ephemeral ones, and to remove
// them once they are, those that ask for it last: until then a kubelet that is
// started anew knows what was going on.
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
				p.Kill = append(p.Kill, Kill{ID: st.ID, Name: c.Name, Message: "killing", Now: true})
			}
		}
		list := &apps
		switch {
		case kind == Init && source(c, st):
			list = &sourceInits
		case kind == Init:
			list = &inits
		case source(c, st):
			list = &sourceApps
		}
		*list = append(*list, st.ID)
	}
	p.Remove = slices.Concat(apps, inits, sourceApps, sourceInits)
}

// waitsForAll tells whether a container has been removed and is to be started
// anew with all others.
func waitsForAll(st *v1.ContainerStatus) bool {
	return st.State.Waiting != nil && st.State.Waiting.Reason == restartingAll
}

// removed is the status of a container that has been removed to be started anew
// with all others as attempt next, old its status before.
func removed(c *v1.Container, old *v1.ContainerStatus, next uint32) v1.ContainerStatus {
	s := v1.ContainerStatus{Name: c.Name, Image: c.Image, RestartCount: int32(next)}
	s.State.Waiting = &v1.ContainerStateWaiting{Reason: restartingAll, Message: restartingAllMessage}
	if waitsForAll(old) {
		s.LastTerminationState = *old.LastTerminationState.DeepCopy()
		return s
	}
	s.LastTerminationState.Terminated = removedState()
	return s
}

func removedState() *v1.ContainerStateTerminated {
	return &v1.ContainerStateTerminated{Reason: restartingAll, Message: restartingAllMessage, ExitCode: 137}
}

// restartingCondition tells whether all containers are being restarted.
func (in *StatusInput) restartingCondition() v1.PodCondition {
	c := v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionFalse}
	if !in.Terminating && !in.Stopped && in.restartingAll() {
		c.Status, c.Reason, c.Message = v1.ConditionTrue, "RestartAllContainersStarted", "container exited with restart policy rule"
	}
	return c
}

// restartsAll tells whether an end is followed by a restart of all containers.
func restartsAll(c *v1.Container, t *v1.ContainerStateTerminated) bool {
	return t.Reason == restartingAll || matching(c, t.ExitCode) == v1.ContainerRestartRuleActionRestartAllContainers
}
