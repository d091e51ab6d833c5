package pods

import (
	"maps"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"

	"hyperkube/internal/cgroup"
	"hyperkube/internal/podfacts"
)

// QOS returns the pod's quality of service class.
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

const (
	minShares  = 2
	maxShares  = 262144
	minQuota   = 1000
	guaranteed = -997
	bestEffort = 1000
)

// shares converts a CPU request to the kernel's weight.
func shares(milli int64) int64 {
	if milli == 0 {
		return minShares
	}
	return min(max(milli*1024/1000, minShares), maxShares)
}

// quota converts a CPU limit to microseconds a period; 0 is no limit.
func quota(milli, period int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*period/1000, minQuota)
}

// oomScore tells the kernel whom to kill first when memory runs out.
func oomScore(pod *v1.Pod, c *v1.Container, capacity int64) int64 {
	if podfacts.Priority(pod) >= podfacts.SystemCritical {
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
	// What the pod asks for beyond its containers is shared among them.
	var share int64
	if all := len(pod.Spec.Containers) + len(pod.Spec.InitContainers); all > 0 && resource.IsPodLevelRequestsSet(pod) {
		if whole := pod.Spec.Resources.Requests.Memory().Value(); whole > 0 {
			requests := resource.AggregateContainerRequests(pod, resource.PodResourcesOptions{})
			share = max(whole-requests.Memory().Value(), 0) / int64(all)
		}
	}
	score := 1000 - 1000*(c.Resources.Requests.Memory().Value()+share)/capacity
	if podfacts.Sidecar(c) && len(pod.Spec.Containers) > 0 {
		// It is not to go before those that it serves.
		least := pod.Spec.Containers[0].Resources.Requests.Memory().Value()
		for i := range pod.Spec.Containers {
			least = min(least, pod.Spec.Containers[i].Resources.Requests.Memory().Value())
		}
		score = min(score, 1000-1000*(least+share)/capacity)
	}
	return min(max(score, 1000+guaranteed), bestEffort-1)
}

// limitsOf are the limits of a container's cgroup: what the container itself does
// not limit is bounded as the whole pod is.
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

// cgroupOf returns the pod's cgroup as a path from the root of the hierarchy.
func (h *Host) cgroupOf(pod *v1.Pod) string {
	return h.cgroup(pod.UID, QOS(pod))
}

// cgroupsOf are the cgroups that the pod may have: of a pod that is gone from the API
// nobody knows the class.
func (h *Host) cgroupsOf(pod *v1.Pod) []string {
	if len(pod.Spec.Containers) > 0 || pod.Status.QOSClass != "" {
		return []string{h.cgroupOf(pod)}
	}
	var out []string
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		out = append(out, h.cgroup(pod.UID, class))
	}
	return out
}

// CgroupOfClass is what is above the cgroups of all pods of a class, as a path from
// the root of the hierarchy; of guaranteed ones it is that of all pods.
func (h *Host) CgroupOfClass(class v1.PodQOSClass) string {
	return path.Dir(h.cgroup("", class))
}

func (h *Host) cgroup(uid types.UID, qos v1.PodQOSClass) string {
	parts := []string{"kubepods"}
	switch qos {
	case v1.PodQOSBurstable:
		parts = append(parts, "burstable")
	case v1.PodQOSBestEffort:
		parts = append(parts, "besteffort")
	}
	parts = append(parts, "pod"+string(uid))
	if h.Limits.Systemd.Load() {
		out, prefix := h.Limits.Root, ""
		for _, p := range parts {
			prefix += strings.ReplaceAll(p, "-", "_")
			out = path.Join("/", out, prefix+".slice")
			prefix += "-"
		}
		return out
	}
	return path.Join(append([]string{"/", h.Limits.Root}, parts...)...)
}

// cgroupParent is the pod's cgroup as the runtime wants it named.
func (h *Host) cgroupParent(pod *v1.Pod) string {
	full := h.cgroupOf(pod)
	if h.Limits.Systemd.Load() {
		return path.Base(full)
	}
	return full
}

// throttled is from how many bytes on a container is slowed down; 0: it is not.
//
// https://kep.k8s.io/2570
func (h *Host) throttled(pod *v1.Pod, c *v1.Container) int64 {
	if h.Limits.Throttling == 0 || QOS(pod) == v1.PodQOSGuaranteed {
		return 0
	}
	request, most := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	if most == 0 && resource.IsPodLevelLimitsSet(pod) && !pod.Spec.Resources.Limits.Memory().IsZero() {
		return 0 // the whole pod's bound holds for it, too
	}
	if most == 0 {
		all := h.Allocatable()
		most = all.Memory().Value()
	}
	if most <= request {
		return 0
	}
	return h.high(request, most)
}

// podResources is what the pod's cgroup may use: limits only where every
// container has them.
func (h *Host) podResources(pod *v1.Pod) cgroup.Resources {
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
	period := h.Limits.CPUQuotaPeriod.Microseconds()
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			// Who has CPUs of its own is not held back.
			cpuLimited = cpuLimited && (h.Limits.OwnCPUs == nil || !h.Limits.OwnCPUs(pod.UID, list[i].Name))
		}
	}
	if cpuLimited && h.Limits.CPUQuota && !limits.Cpu().IsZero() {
		r.CPUQuota, r.CPUPeriod = quota(limits.Cpu().MilliValue(), period), uint64(period)
	}
	if memoryLimited && !limits.Memory().IsZero() {
		r.MemoryLimit = limits.Memory().Value()
	}
	r.Unified = h.podMemory(pod, requests.Memory().Value(), limits.Memory().Value(), memoryLimited)
	if h.Limits.Pids > 0 {
		r.PidsLimit = h.Limits.Pids
	}
	// Where there are huge pages nobody gets any that did not ask for them.
	for _, size := range h.Limits.Hugepages {
		if r.HugepageLimits == nil {
			r.HugepageLimits = map[string]uint64{}
		}
		q := limits[v1.ResourceName(v1.ResourceHugePagesPrefix+size)]
		r.HugepageLimits[pageSize(size)] = uint64(q.Value())
	}
	return r
}
