package podstate

import (
	"slices"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
)

// maxWords is how long the last words of a pod's containers are together, in bytes: each
// container has the same part of it.
// https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
const maxWords = 12 << 10

// cutMessages cuts what containers have said last, that many do not make the pod's status
// too large.
func cutMessages(s *v1.PodStatus) {
	all := slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses)
	for i := range all {
		for _, end := range []*v1.ContainerStateTerminated{all[i].State.Terminated, all[i].LastTerminationState.Terminated} {
			if end != nil {
				end.Message = cut(end.Message, maxWords/len(all))
			}
		}
	}
}

// cut returns the first bytes of text, at most most of them, without half a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most
	for end > 0 && most-end < utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.Clone(text[:end])
}
