package pods

import (
	v1 "k8s.io/api/core/v1"
)

// swapFile bounds what of a container is swapped out, in bytes. Cgroups of version
// 1 have a bound of memory and swap together, which is that of the memory unless
// something else is said.
const swapFile = "memory.swap.max"

// swapLimit is how many bytes of a container may be swapped out, false where
// nothing is to be said of it. A burstable container with LimitedSwap gets as much
// of the swap as it asks for of the memory; all others get none.
//
// https://kubernetes.io/docs/concepts/cluster-administration/swap-memory-management/
func (h *Host) swapLimit(pod *v1.Pod, c *v1.Container) (int64, bool) {
	if h.Limits.Swap == nil {
		return 0, false
	}
	if !h.swaps(pod, c) || h.Limits.MemoryCapacity <= 0 {
		return 0, true
	}
	request := c.Resources.Requests.Memory().Value()
	return int64(float64(request) / float64(h.Limits.MemoryCapacity) * float64(h.Limits.Swap())), true
}

// swaps tells whether a container would have a part of the swap that goes by the memory that
// it asks for.
func (h *Host) swaps(pod *v1.Pod, c *v1.Container) bool {
	return h.Limits.Swap != nil && !IsCritical(pod) && QOS(pod) == v1.PodQOSBurstable &&
		!c.Resources.Requests.Memory().Equal(*c.Resources.Limits.Memory())
}
