package pods

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/pod/podutil"
)

// QOS returns the pod's quality of service class: that of its status, or, if the status has none, computed from
// its pod-level resources or else from those of its init and app containers.
func QOS(pod *v1.Pod) v1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	some, guaranteed := false, true
	check := func(r v1.ResourceRequirements) {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			request, limit := r.Requests[name], r.Limits[name]
			if !request.IsZero() || !limit.IsZero() {
				some = true
			}
			if limit.IsZero() || (!request.IsZero() && request.Cmp(limit) != 0) {
				guaranteed = false
			}
		}
	}
	if resource.IsPodLevelResourcesSet(pod) {
		check(*pod.Spec.Resources)
	} else {
		for i := range pod.Spec.InitContainers {
			check(pod.Spec.InitContainers[i].Resources)
		}
		for i := range pod.Spec.Containers {
			check(pod.Spec.Containers[i].Resources)
		}
	}
	switch {
	case !some:
		return v1.PodQOSBestEffort
	case guaranteed:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
}

// minShares, maxShares and minQuota bound CPU shares and the CPU quota, which is in microseconds per period, as in
// upstream. guaranteed and bestEffort are the oom_score_adj of containers of these QoS classes.
const (
	minShares  = 2
	maxShares  = 262144
	minQuota   = 1000
	guaranteed = -997
	bestEffort = 1000
)

// shares converts a CPU request in millicores to CPU shares, between minShares and maxShares. No request gives
// minShares.
func shares(milli int64) int64 {
	if milli == 0 {
		return minShares
	}
	return min(max(milli*1024/1000, minShares), maxShares)
}

// quota converts a CPU limit in millicores to microseconds per period, at least minQuota. period is in
// microseconds. 0 means no limit.
func quota(milli, period int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*period/1000, minQuota)
}

// oomScore returns the oom_score_adj of a container, which determines the order in which the kernel kills
// processes when memory is exhausted. It is guaranteed for Guaranteed and system-critical pods and bestEffort
// for BestEffort pods; for Burstable pods it is between them, the larger the memory request, the lower.
// capacity is the machine's memory in bytes; if it is 0, all Burstable containers get the same value.
func oomScore(pod *v1.Pod, c *v1.Container, capacity int64) int64 {
	if podutil.Priority(pod) >= podutil.SystemCritical {
		return guaranteed
	}
	switch QOS(pod) {
	case v1.PodQOSGuaranteed:
		return guaranteed
	case v1.PodQOSBestEffort:
		return bestEffort
	}
	if capacity <= 0 {
		return bestEffort - 1
	}
	// Pod-level requests beyond the containers' requests are distributed among the containers.
	var share int64
	if all := len(pod.Spec.Containers) + len(pod.Spec.InitContainers); all > 0 && resource.IsPodLevelRequestsSet(pod) {
		if whole := pod.Spec.Resources.Requests.Memory().Value(); whole > 0 {
			requests := resource.AggregateContainerRequests(pod, resource.PodResourcesOptions{})
			share = max(whole-requests.Memory().Value(), 0) / int64(all)
		}
	}
	score := 1000 - 1000*(c.Resources.Requests.Memory().Value()+share)/capacity
	if podutil.Sidecar(c) && len(pod.Spec.Containers) > 0 {
		// A sidecar must not be killed before the containers that it serves.
		least := pod.Spec.Containers[0].Resources.Requests.Memory().Value()
		for i := range pod.Spec.Containers {
			least = min(least, pod.Spec.Containers[i].Resources.Requests.Memory().Value())
		}
		score = min(score, 1000-1000*(least+share)/capacity)
	}
	return min(max(score, 1000+guaranteed), bestEffort-1)
}

// limitsOf returns the limits of a container's cgroup. Pod-level limits apply to resources that the
// container does not limit.
//
// https://kep.k8s.io/2837
func limitsOf(pod *v1.Pod, c *v1.Container) v1.ResourceList {
	if !resource.IsPodLevelLimitsSet(pod) {
		return c.Resources.Limits
	}
	out := maps.Clone(c.Resources.Limits)
	for name, q := range pod.Spec.Resources.Limits {
		if own := c.Resources.Limits[name]; own.IsZero() && resource.IsSupportedPodLevelResource(name) {
			if out == nil {
				out = v1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}

// limiter computes the cgroup limits of pods and containers from their specs. It changes nothing on the node.
type limiter struct {
	Limits
	platform    *Platform
	allocatable func() v1.ResourceList
}

// containerMemoryHigh returns memory.high of a container in bytes: a value between its memory request and its
// limit or, without a limit, the node's allocatable memory. 0 means that it is not set: throttling is off, the
// pod is Guaranteed, a pod-level limit applies, or the limit is not larger than the request.
//
// https://kep.k8s.io/2570
func (l *limiter) containerMemoryHigh(pod *v1.Pod, c *v1.Container) int64 {
	if l.Throttling == 0 || QOS(pod) == v1.PodQOSGuaranteed {
		return 0
	}
	request, most := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	if most == 0 && resource.IsPodLevelLimitsSet(pod) && !pod.Spec.Resources.Limits.Memory().IsZero() {
		return 0 // the pod-level limit applies
	}
	if most == 0 {
		all := l.allocatable()
		most = all.Memory().Value()
	}
	if most <= request {
		return 0
	}
	return l.memoryHighBytes(request, most)
}

// podResources returns the resources of the pod's cgroup. A CPU or memory limit is set only if every container
// has one. There is no CPU limit if a container has exclusive CPUs or CPU limits are not enforced. The number
// of processes and huge pages are limited if the node configures them.
func (l *limiter) podResources(pod *v1.Pod) cgroup.Resources {
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
	limits := resource.PodLimits(pod, resource.PodResourcesOptions{})
	cpuLimited, memoryLimited := true, true
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			limits := limitsOf(pod, &list[i])
			cpuLimited = cpuLimited && !limits.Cpu().IsZero()
			memoryLimited = memoryLimited && !limits.Memory().IsZero()
		}
	}
	r := cgroup.Resources{CPUShares: uint64(shares(requests.Cpu().MilliValue()))}
	if QOS(pod) == v1.PodQOSBestEffort {
		r.CPUShares = minShares
	}
	period := l.CPUQuotaPeriod.Microseconds()
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			// A container with exclusive CPUs must not be throttled.
			cpuLimited = cpuLimited && (l.HasExclusiveCPUs == nil || !l.HasExclusiveCPUs(pod.UID, list[i].Name))
		}
	}
	if cpuLimited && l.CPUQuota && !limits.Cpu().IsZero() {
		r.CPUQuota, r.CPUPeriod = quota(limits.Cpu().MilliValue(), period), uint64(period)
	}
	if memoryLimited && !limits.Memory().IsZero() {
		r.MemoryLimit = limits.Memory().Value()
	}
	r.Unified = l.podMemoryProtection(pod, requests.Memory().Value(), limits.Memory().Value(), memoryLimited)
	if l.Pids > 0 {
		r.PidsLimit = l.Pids
	}
	// If the machine has huge pages, pods are limited to those that they request.
	for _, size := range l.Hugepages {
		if r.HugepageLimits == nil {
			r.HugepageLimits = map[string]uint64{}
		}
		q := limits[v1.ResourceName(v1.ResourceHugePagesPrefix+size)]
		r.HugepageLimits[pageSize(size)] = uint64(q.Value())
	}
	return r
}
