package podstate

import (
	"slices"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
)

// maxTotalMessages is the maximum total size of the termination messages of a pod in bytes. It is
// distributed evenly among the containers.
//
// https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
const maxTotalMessages = 12 << 10

// cutMessages truncates the termination messages of the pod's containers in s, so that the status remains
// small.
func cutMessages(s *v1.PodStatus) {
	all := slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses)
	for i := range all {
		for _, end := range []*v1.ContainerStateTerminated{all[i].State.Terminated, all[i].LastTerminationState.Terminated} {
			if end != nil {
				end.Message = truncate(end.Message, maxTotalMessages/len(all))
			}
		}
	}
}

// truncate truncates text to at most most bytes without splitting a character.
func truncate(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most
	for end > 0 && most-end < utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.Clone(text[:end])
}
