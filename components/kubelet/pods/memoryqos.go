package pods

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// The files of cgroup version 2 by which memory is kept for whom it was asked for: min
// is never taken away, low only when nothing else is left, and who has more than high
// is slowed down.
//
// https://kep.k8s.io/2570
const (
	memoryMin  = "memory.min"
	memoryLow  = "memory.low"
	memoryHigh = "memory.high"
)

// protection is what keeps the memory that was asked for: nothing is kept without
// Tiered, so that what an earlier kubelet kept is given up; nil without MemoryQoS.
func (h *Host) protection(qos v1.PodQOSClass, request int64) map[string]string {
	if !h.Limits.MemoryQoS {
		return nil
	}
	out := map[string]string{memoryMin: "0", memoryLow: "0"}
	switch {
	case !h.Limits.Tiered || request <= 0:
	case qos == v1.PodQOSGuaranteed:
		out = map[string]string{memoryMin: strconv.FormatInt(request, 10)}
	default:
		out = map[string]string{memoryLow: strconv.FormatInt(request, 10)}
	}
	return out
}

// podMemory is what keeps a whole pod's memory, and slows it down where it has
// resources of its own; nil for nothing.
func (h *Host) podMemory(pod *v1.Pod, request, limit int64, limited bool) map[string]string {
	var out map[string]string
	if h.Limits.Tiered && request > 0 {
		out = h.protection(QOS(pod), request)
	}
	if h.Limits.Throttling == 0 || !resource.IsPodLevelResourcesSet(pod) || !limited || limit == 0 || request == limit {
		return out
	}
	if high := h.high(request, limit); high > request {
		if out == nil {
			out = map[string]string{}
		}
		out[memoryHigh] = strconv.FormatInt(high, 10)
	}
	return out
}

// high is from how many bytes on is slowed down who asks for request and may have most.
func (h *Host) high(request, most int64) int64 {
	const page = 4096
	return int64(float64(request)+h.Limits.Throttling*float64(most-request)) / page * page
}

// keptMemory is how much memory all guaranteed pods ask for together, and all burstable
// ones, in bytes.
func keptMemory(pods []*v1.Pod) (guaranteed, burstable int64) {
	for _, pod := range pods {
		requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
		switch QOS(pod) {
		case v1.PodQOSGuaranteed:
			guaranteed += requests.Memory().Value()
		case v1.PodQOSBurstable:
			burstable += requests.Memory().Value()
		}
	}
	return guaranteed, burstable
}
