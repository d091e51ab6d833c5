package pods

import (
	v1 "k8s.io/api/core/v1"
)

// swapFile is the cgroup v2 file that limits the swap of a container, in bytes. On cgroup v1 the limit of
// memory and swap together defaults to the memory limit.
const swapFile = "memory.swap.max"

// swapLimit returns the swap limit of a container in bytes, and false if swap is not configured. A container of
// a Burstable pod that is not critical, with a memory request that differs from its limit, gets a part of the
// node's swap in proportion to its request; all others get none.
//
// https://kubernetes.io/docs/concepts/cluster-administration/swap-memory-management/
func (l *limiter) swapLimit(pod *v1.Pod, c *v1.Container) (int64, bool) {
	if !l.swapConfigured() {
		return 0, false
	}
	if !l.swapDependsOnRequest(pod, c) || l.MemoryCapacity <= 0 {
		return 0, true
	}
	request := c.Resources.Requests.Memory().Value()
	return int64(float64(request) / float64(l.MemoryCapacity) * float64(l.Swap())), true
}

// swapDependsOnRequest reports whether a container's swap limit is proportional to its memory request: swap
// is configured, and the container belongs to a Burstable pod that is not critical and has a memory request
// that differs from its limit.
func (l *limiter) swapDependsOnRequest(pod *v1.Pod, c *v1.Container) bool {
	return l.swapConfigured() && !IsCritical(pod) && QOS(pod) == v1.PodQOSBurstable &&
		!c.Resources.Requests.Memory().Equal(*c.Resources.Limits.Memory())
}

// swapConfigured reports whether the kubelet limits the swap of containers and the kernel supports that.
func (l *limiter) swapConfigured() bool { return l.Swap != nil && l.platform.SwapAccounting() }
