package podstate

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"hyperkube/internal/pod/podutil"
)

// hasRun reports whether the container with the status st is running or has run.
func hasRun(st v1.ContainerStatus) bool {
	return st.State.Waiting == nil || st.LastTerminationState.Terminated != nil
}

// terminateContainers marks containers in the status s of a stopped pod as terminated: all app containers if
// they should have run, and the init containers up to the last one that has run.
func (in *StatusInput) terminateContainers(s *v1.PodStatus) {
	if in.appsShouldHaveRun(s) {
		for i := range s.ContainerStatuses {
			markTerminated(&s.ContainerStatuses[i])
		}
	}
	last := 0
	for i := range s.InitContainerStatuses {
		if hasRun(s.InitContainerStatuses[i]) {
			last = i
		}
	}
	for i := range s.InitContainerStatuses {
		if i <= last {
			markTerminated(&s.InitContainerStatuses[i])
		}
	}
}

// appsShouldHaveRun reports whether the app containers should have run: one of them has, or there are no init
// containers, or the last init container had completed or, if it is a sidecar, had started.
func (in *StatusInput) appsShouldHaveRun(s *v1.PodStatus) bool {
	if slices.ContainsFunc(s.ContainerStatuses, hasRun) {
		return true
	}
	n := len(s.InitContainerStatuses)
	if n == 0 {
		return true
	}
	last := &s.InitContainerStatuses[n-1]
	if podutil.Sidecar(&in.Pod.Spec.InitContainers[n-1]) {
		return last.State.Running != nil && ptr.Deref(last.Started, false)
	}
	done := lastTermination(last)
	return done != nil && done.ExitCode == 0
}

// markTerminated marks a container as terminated with an unknown result, unless its status already has the
// result. LastTerminationState is not used, because it describes an attempt before a restart.
func markTerminated(st *v1.ContainerStatus) {
	if st.State.Terminated != nil {
		return
	}
	st.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		Reason: unknownStatus, Message: "The container could not be located when the pod was terminated", ExitCode: 137,
	}}
	no := false
	st.Ready, st.Started = false, &no
}
