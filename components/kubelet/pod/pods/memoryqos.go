package pods

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// memoryMin and memoryLow are the files of cgroup v2 that protect requested memory: the kernel never reclaims
// memory up to memory.min, and memory up to memory.low only if no unprotected memory is left. memoryHigh is the
// file with the usage above which a cgroup is throttled.
//
// https://kep.k8s.io/2570
const (
	memoryMin  = "memory.min"
	memoryLow  = "memory.low"
	memoryHigh = "memory.high"
)

// protection returns the contents of the cgroup files that protect the requested memory of a container or pod, by
// file name. request is in bytes. Guaranteed pods get memory.min, other pods memory.low. If memory is not
// protected, because Tiered is not configured or there is no request, both are zero, to reset what an earlier
// kubelet has set. The result is nil if MemoryQoS is not configured.
func (l *limiter) protection(qos v1.PodQOSClass, request int64) map[string]string {
	if !l.MemoryQoS {
		return nil
	}
	out := map[string]string{memoryMin: "0", memoryLow: "0"}
	switch {
	case !l.Tiered || request <= 0:
	case qos == v1.PodQOSGuaranteed:
		out = map[string]string{memoryMin: strconv.FormatInt(request, 10)}
	default:
		out = map[string]string{memoryLow: strconv.FormatInt(request, 10)}
	}
	return out
}

// podMemoryProtection returns the contents of the cgroup files for the memory of a whole pod: its protected
// memory if Tiered is configured and the pod has a memory request, and memory.high if throttling is configured,
// the pod has pod-level resources, and its memory limit is larger than its request. request and limit are in
// bytes, and limited is true if every container has a memory limit; otherwise memory.high is not set. The
// result is nil if no file needs to be written.
func (l *limiter) podMemoryProtection(pod *v1.Pod, request, limit int64, limited bool) map[string]string {
	var out map[string]string
	if l.Tiered && request > 0 {
		out = l.protection(QOS(pod), request)
	}
	if l.Throttling == 0 || !resource.IsPodLevelResourcesSet(pod) || !limited || limit == 0 || request == limit {
		return out
	}
	if high := l.memoryHighBytes(request, limit); high > request {
		if out == nil {
			out = map[string]string{}
		}
		out[memoryHigh] = strconv.FormatInt(high, 10)
	}
	return out
}

// memoryHighBytes returns the value of memory.high for a memory request and the limit most, all in bytes: request +
// Throttling * (most - request), rounded down to whole pages.
func (l *limiter) memoryHighBytes(request, most int64) int64 {
	const page = 4096
	return int64(float64(request)+l.Throttling*float64(most-request)) / page * page
}

// protectedMemory returns the total memory requests of all Guaranteed and of all Burstable pods, in
// bytes.
func protectedMemory(pods []*v1.Pod) (guaranteed, burstable int64) {
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
