package podstate

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"hyperkube/internal/podfacts"
)

// hasRun tells whether a container runs or has run.
func hasRun(st v1.ContainerStatus) bool {
	return st.State.Waiting == nil || st.LastTerminationState.Terminated != nil
}

// endContainers gives containers of a stopped pod an end: all that were to run, and
// init containers up to the last that did.
func (in *StatusInput) endContainers(s *v1.PodStatus) {
	if in.hadBegun(s) {
		for i := range s.ContainerStatuses {
			end(&s.ContainerStatuses[i])
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
			end(&s.InitContainerStatuses[i])
		}
	}
}

// hadBegun tells whether the app containers of a pod were to run: nothing came
// before them, or it was through.
func (in *StatusInput) hadBegun(s *v1.PodStatus) bool {
	if slices.ContainsFunc(s.ContainerStatuses, hasRun) {
		return true
	}
	n := len(s.InitContainerStatuses)
	if n == 0 {
		return true
	}
	last := &s.InitContainerStatuses[n-1]
	if podfacts.Sidecar(&in.Pod.Spec.InitContainers[n-1]) {
		return last.State.Running != nil && ptr.Deref(last.Started, false)
	}
	done := ending(last)
	return done != nil && done.ExitCode == 0
}

// end makes a container one that has ended, nobody knows how: what it did before
// it was to be started again is no end of the pod.
func end(st *v1.ContainerStatus) {
	if st.State.Terminated != nil {
		return
	}
	st.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		Reason: unknownStatus, Message: "The container could not be located when the pod was terminated", ExitCode: 137,
	}}
	no := false
	st.Ready, st.Started = false, &no
}
