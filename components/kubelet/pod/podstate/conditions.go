package podstate

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"hyperkube/internal/pod/podutil"
)

// conditions sets the pod's conditions in s: first those that the kubelet computes, then those that other
// components have set, unchanged. The container statuses and the phase of s must be set before.
func (in *StatusInput) conditions(s *v1.PodStatus) {
	containers := in.containersReady(s)
	ready := in.podReady(containers)
	computed := []v1.PodCondition{in.sandboxReady()}
	if !in.rejected() {
		computed = append(computed, in.initialized(s))
	}
	computed = append(computed, ready, containers, v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue})
	if canRestartAll(in.Pod) && !in.rejected() {
		computed = append(computed, in.restartingCondition())
	}
	computed = append(computed, in.Conditions...)
	for _, c := range computed {
		c.ObservedGeneration = in.Pod.Generation
		s.Conditions = append(s.Conditions, in.withTransitionTime(c))
	}
	for _, c := range in.Last.Conditions {
		// The conditions of a finished resize are removed.
		if !has(s.Conditions, c.Type) && c.Type != v1.PodResizePending && c.Type != v1.PodResizeInProgress {
			s.Conditions = append(s.Conditions, c)
		}
	}
}

// sandboxReady returns the condition PodReadyToStartContainers: whether the pod has exactly one ready sandbox
// and, unless it uses the host network, an IP address.
func (in *StatusInput) sandboxReady() v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionFalse, Reason: "PodSandboxNotReady"}
	ready := 0
	for i := range in.Observed.Sandboxes {
		if in.Observed.Sandboxes[i].Ready {
			ready++
		}
	}
	switch box := in.Observed.Sandbox(); {
	case len(in.Observed.Sandboxes) == 0:
		c.Message = "no pod sandbox exists"
	case ready > 1:
		c.Message = "multiple pod sandboxes are ready and need to be reconciled"
	case box == nil && !in.Observed.Sandboxes[0].Lost:
		c.Message = "pod sandbox is not ready"
	case box == nil, !in.Pod.Spec.HostNetwork && len(box.IPs) == 0:
		c.Message = "pod sandbox has no IP address"
	default:
		c.Status, c.Reason = v1.ConditionTrue, ""
	}
	return c
}

// has reports whether the list has a condition of the type t.
func has(list []v1.PodCondition, t v1.PodConditionType) bool {
	for i := range list {
		if list[i].Type == t {
			return true
		}
	}
	return false
}

// withTransitionTime sets the transition time of a condition: that of the last status if the condition has
// not changed, otherwise now.
func (in *StatusInput) withTransitionTime(c v1.PodCondition) v1.PodCondition {
	for _, old := range in.Last.Conditions {
		if old.Type == c.Type {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			c.LastProbeTime = old.LastProbeTime
		}
	}
	if c.LastTransitionTime.IsZero() {
		c.LastTransitionTime = apiTime(in.Now)
		if in.Now.IsZero() {
			c.LastTransitionTime = metav1.Time{}
		}
	}
	return c
}

// containersReady returns the condition ContainersReady: whether all app containers and sidecars of s are
// ready.
func (in *StatusInput) containersReady(s *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse}
	if s.Phase == v1.PodSucceeded {
		c.Reason = "PodCompleted"
		return c
	}
	if s.Phase == v1.PodFailed {
		c.Reason = "PodFailed"
		return c
	}
	var unready []string
	for i := range in.Pod.Spec.InitContainers {
		if podutil.Sidecar(&in.Pod.Spec.InitContainers[i]) && !s.InitContainerStatuses[i].Ready {
			unready = append(unready, in.Pod.Spec.InitContainers[i].Name)
		}
	}
	for i := range s.ContainerStatuses {
		if !s.ContainerStatuses[i].Ready {
			unready = append(unready, s.ContainerStatuses[i].Name)
		}
	}
	if len(unready) > 0 {
		c.Reason = "ContainersNotReady"
		c.Message = fmt.Sprintf("containers with unready status: %s", unready)
		return c
	}
	c.Status = v1.ConditionTrue
	return c
}

// podReady returns the condition Ready: containers, the condition ContainersReady, and all readiness gates
// must be true.
func (in *StatusInput) podReady(containers v1.PodCondition) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodReady, Status: containers.Status, Reason: containers.Reason, Message: containers.Message}
	if containers.Status != v1.ConditionTrue {
		return c
	}
	var missing []string
	for _, gate := range in.Pod.Spec.ReadinessGates {
		found := false
		for _, have := range in.Last.Conditions {
			if have.Type != gate.ConditionType {
				continue
			}
			found = true
			if have.Status != v1.ConditionTrue {
				missing = append(missing, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, have.Status))
			}
		}
		if !found {
			missing = append(missing, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		}
	}
	if len(missing) > 0 {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, "ReadinessGatesNotReady", strings.Join(missing, ", ")
	}
	return c
}

// initialized returns the condition Initialized: whether all init containers have completed and all sidecars have
// started. It remains true once it was reported as true or an app container has run, even if a sidecar restarts. It
// is also true for a pod that has succeeded.
func (in *StatusInput) initialized(s *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if s.Phase == v1.PodSucceeded {
		c.Reason = "PodCompleted"
		return c
	}
	// An initialized pod remains initialized.
	over := slices.ContainsFunc(in.Last.Conditions, func(old v1.PodCondition) bool { return old.Type == c.Type && old.Status == v1.ConditionTrue }) ||
		slices.ContainsFunc(s.ContainerStatuses, func(st v1.ContainerStatus) bool { return st.State.Running != nil || st.State.Terminated != nil })
	var incomplete []string
	for i := range in.Pod.Spec.InitContainers {
		st := &s.InitContainerStatuses[i]
		done := st.Ready
		if podutil.Sidecar(&in.Pod.Spec.InitContainers[i]) {
			done = ptr.Deref(st.Started, false)
		}
		if !done {
			incomplete = append(incomplete, st.Name)
		}
	}
	if len(incomplete) > 0 && !over {
		c.Status, c.Reason = v1.ConditionFalse, "ContainersNotInitialized"
		c.Message = fmt.Sprintf("containers with incomplete status: %s", incomplete)
	}
	return c
}
