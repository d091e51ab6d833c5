package podstate

import (
	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/pod/podutil"
)

// phase computes the phase of the pod from the container statuses in s. stopped is true if no container runs and
// none is started any more. underWay is true if an app container was created in the pod's current sandbox, so that
// a restarting sidecar does not reset the phase to Pending.
func phase(pod *v1.Pod, s *v1.PodStatus, stopped, underWay bool) v1.PodPhase {
	var pendingInit, pendingSidecar, running, waiting, ended, over, succeeded int
	for i := range pod.Spec.InitContainers {
		c, st := &pod.Spec.InitContainers[i], &s.InitContainerStatuses[i]
		end := lastTermination(st)
		if podutil.Sidecar(c) {
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
		case end.ExitCode != 0 && !isRestarted(pod, c, end):
			return v1.PodFailed
		}
	}
	for i := range s.ContainerStatuses {
		c, st := &pod.Spec.Containers[i], &s.ContainerStatuses[i]
		end := lastTermination(st)
		switch {
		case st.State.Running != nil:
			running++
		case end == nil:
			waiting++
		default:
			ended++
			if !isRestarted(pod, c, end) {
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

// lastTermination returns the last termination of a container that is not running, or nil.
func lastTermination(st *v1.ContainerStatus) *v1.ContainerStateTerminated {
	switch {
	case st.State.Running != nil:
		return nil
	case st.State.Terminated != nil:
		return st.State.Terminated
	}
	return st.LastTerminationState.Terminated
}

// isRestarted reports whether a container with the termination end is restarted, alone or with all containers
// of the pod.
func isRestarted(pod *v1.Pod, c *v1.Container, end *v1.ContainerStateTerminated) bool {
	return shouldRestart(pod, c, end.ExitCode) || causesRestartAll(c, end)
}

// appCreated reports whether an app container was created in the current sandbox.
func (in *StatusInput) appCreated() bool {
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
