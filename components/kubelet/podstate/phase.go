package podstate

import (
	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/podfacts"
)

// phase sums up the containers. underWay: an app container has been made in the
// pod's sandbox, so that sidecars that come back do not take the pod back.
func phase(pod *v1.Pod, s *v1.PodStatus, stopped, underWay bool) v1.PodPhase {
	var pendingInit, pendingSidecar, running, waiting, ended, over, succeeded int
	for i := range pod.Spec.InitContainers {
		c, st := &pod.Spec.InitContainers[i], &s.InitContainerStatuses[i]
		end := ending(st)
		if podfacts.Sidecar(c) {
			switch {
			case st.State.Running != nil:
				running++
				if st.Started == nil || !*st.Started {
					pendingSidecar++
				}
			case end == nil:
				pendingSidecar++
				waiting++
			}
			continue
		}
		switch {
		case end == nil:
			pendingInit++
		case end.ExitCode != 0 && !goesOn(pod, c, end):
			return v1.PodFailed
		}
	}
	for i := range s.ContainerStatuses {
		c, st := &pod.Spec.Containers[i], &s.ContainerStatuses[i]
		end := ending(st)
		switch {
		case st.State.Running != nil:
			running++
		case end == nil:
			waiting++
		default:
			ended++
			if !goesOn(pod, c, end) {
				over++
			}
			if st.State.Terminated != nil && end.ExitCode == 0 {
				succeeded++
			}
		}
	}
	switch {
	case pendingInit > 0, pendingSidecar > 0 && !underWay, waiting > 0:
		return v1.PodPending
	case running > 0:
		return v1.PodRunning
	case ended == 0:
		return v1.PodPending
	case !stopped && ended != over:
		return v1.PodRunning
	case ended == succeeded:
		return v1.PodSucceeded
	}
	return v1.PodFailed
}

// ending is how a container that does not run ended last; nil: it runs, or never
// did.
func ending(st *v1.ContainerStatus) *v1.ContainerStateTerminated {
	switch {
	case st.State.Running != nil:
		return nil
	case st.State.Terminated != nil:
		return st.State.Terminated
	}
	return st.LastTerminationState.Terminated
}

// goesOn tells whether a container that ended so is started again.
func goesOn(pod *v1.Pod, c *v1.Container, end *v1.ContainerStateTerminated) bool {
	return shouldRestart(pod, c, end.ExitCode) || restartsAll(c, end)
}

// underWay tells whether an app container has been made in the sandbox that there is.
func (in *StatusInput) underWay() bool {
	box := in.Observed.Sandbox()
	if box == nil {
		return false
	}
	for i := range in.Pod.Spec.Containers {
		if c := in.Observed.Latest(in.Pod.Spec.Containers[i].Name); c != nil && c.SandboxID == box.ID {
			return true
		}
	}
	return false
}
