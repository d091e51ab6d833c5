// Package podutil contains predicates and accessors of pods that components share. Its functions
// do not modify pods and do not allocate memory.
package podutil

import corev1 "k8s.io/api/core/v1"

// SystemCritical is the lowest priority of system-critical pods. The priorities of user-defined
// PriorityClasses are lower.
//
// https://kubernetes.io/docs/tasks/administer-cluster/guaranteed-scheduling-critical-addon-pods/
const SystemCritical = 2_000_000_000

// Terminal reports whether p has the phase Succeeded or Failed: all containers have terminated and
// will not be restarted.
//
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-phase
func Terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Ready reports whether the Ready condition of p is true.
func Ready(p *corev1.Pod) bool {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Priority returns the priority of p, or zero if admission has not set it.
func Priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// Sidecar reports whether the init container c is a sidecar container: it has restart policy
// Always, so that it runs beside the containers that start after it. Do not call it for other
// containers, which may have the same restart policy but are not sidecars.
//
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
func Sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
