package plugins

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// SchedulingGates prevents the scheduling of pods with scheduling gates.
// https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/
type SchedulingGates struct{}

// Name returns the name of the plugin in configuration files.
func (SchedulingGates) Name() string { return "SchedulingGates" }

// PreEnqueue returns a message with the pod's scheduling gates, or "" if it has none.
func (SchedulingGates) PreEnqueue(pod *corev1.Pod) string {
	if len(pod.Spec.SchedulingGates) == 0 {
		return ""
	}
	names := make([]string, len(pod.Spec.SchedulingGates))
	for i, gate := range pod.Spec.SchedulingGates {
		names[i] = gate.Name
	}
	return "waiting for scheduling gates: [" + strings.Join(names, " ") + "]"
}
