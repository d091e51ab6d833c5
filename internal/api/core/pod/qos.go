package pod

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// QOS returns the quality of service class of a pod: Guaranteed if every container has CPU and
// memory limits that equal its requests, BestEffort if no container has requests or limits,
// Burstable otherwise. If pod-level resources are set, only they count.
func QOS(p *corev1.Pod) corev1.PodQOSClass {
	if resourcehelper.IsPodLevelResourcesSet(p) {
		return qosOf(p.Spec.Resources)
	}
	class := corev1.PodQOSClass("")
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			containerClass := qosOf(&containers[i].Resources)
			if class == "" {
				class = containerClass
			}
			if containerClass != class {
				return corev1.PodQOSBurstable
			}
		}
	}
	if class == "" {
		return corev1.PodQOSBestEffort
	}
	return class
}

// qosOf returns the QoS class of one container or of the pod-level resources: Guaranteed if the limits of CPU and
// memory are set and equal the requests, BestEffort if neither is set, otherwise Burstable.
func qosOf(r *corev1.ResourceRequirements) corev1.PodQOSClass {
	bare, equal := 0, 0
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		request, limit := r.Requests[name], r.Limits[name]
		switch {
		case !request.Equal(limit):
			return corev1.PodQOSBurstable
		case request.IsZero():
			bare++
		default:
			equal++
		}
	}
	switch {
	case equal == 0:
		return corev1.PodQOSBestEffort
	case bare == 0:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// isInt32 reports whether s is an integer of 32 bits, without a plus sign and leading zeros.
func isInt32(s string) bool {
	n, err := strconv.ParseInt(s, 10, 32)
	// Reject forms that JSON does not allow: "+1" and "01".
	return err == nil && strconv.FormatInt(n, 10) == s
}
