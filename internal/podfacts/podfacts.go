// Package podfacts answers what every component asks of a pod, so that all of them
// mean the same by it. Its functions only read, and allocate nothing.
package podfacts

import corev1 "k8s.io/api/core/v1"

// SystemCritical is the least priority of pods that a node or the cluster cannot do
// without; classes of users end below it.
//
// https://kubernetes.io/docs/tasks/administer-cluster/guaranteed-scheduling-critical-addon-pods/
const SystemCritical = 2_000_000_000

// Terminal tells whether all containers of p have ended for good.
//
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-phase
func Terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Ready tells whether the Ready condition of p is true.
func Ready(p *corev1.Pod) bool {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Priority of p; zero while admission has given it none.
func Priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// Sidecar tells whether an init container is restarted always, so that it runs beside
// the containers that come after it. The pod's other containers may have that policy
// too, and are none.
//
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
func Sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
