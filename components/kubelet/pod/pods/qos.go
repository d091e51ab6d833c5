package pods

import (
	"path"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"hyperkube/internal/host/cgroup"
)

// burstableWeight sets the total CPU weight of Burstable pods relative to Guaranteed pods, whose cgroups
// are siblings, to their total requests. Otherwise a busy Guaranteed pod would starve them.
//
// https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/
type burstableWeight struct {
	mu sync.Mutex
	// written is the weight last written; 0 initially.
	written uint64
	// guaranteed and burstable are the protected bytes of memory last written.
	guaranteed, burstable int64
}

// updateWeights updates the weight to the current pods.
func (m *Manager) updateWeights() {
	if m.host.Limits.Cgroups == nil {
		return
	}
	b := &m.balance
	b.mu.Lock()
	defer b.mu.Unlock()
	active := m.Active()
	// The cgroup exists before the first pod.
	name := m.host.CgroupOfClass(v1.PodQOSBurstable)
	if m.host.Limits.Tiered {
		m.protectMemory(active, name)
	}
	want := burstableShares(active)
	if want == b.written {
		return
	}
	if err := m.host.Limits.Cgroups.Set(name, cgroup.Resources{CPUShares: want}); err != nil {
		m.host.Log.Warn("setting the CPU weight of Burstable pods failed", "cgroup", name, "err", err)
		return
	}
	b.written = want
}

// protectMemory sets the memory protection of the cgroups of all pods and of Burstable pods to the sum of
// their pods, because a cgroup's protection is limited by that of its parent. The caller must hold
// balance.mu.
func (m *Manager) protectMemory(active []*v1.Pod, burstable string) {
	b := &m.balance
	hard, soft := protectedMemory(active)
	if hard == b.guaranteed && soft == b.burstable {
		return
	}
	text := func(n int64) string { return strconv.FormatInt(n, 10) }
	err := m.host.Limits.Cgroups.Set(path.Dir(burstable), cgroup.Resources{Unified: map[string]string{memoryMin: text(hard + soft), memoryLow: text(soft)}})
	if err == nil {
		err = m.host.Limits.Cgroups.Set(burstable, cgroup.Resources{Unified: map[string]string{memoryLow: text(soft)}})
	}
	if err != nil {
		m.host.Log.Warn("setting memory protection failed", "cgroup", burstable, "err", err)
		return
	}
	b.guaranteed, b.burstable = hard, soft
	m.host.Metrics.MemoryProtected(hard, soft)
}

// burstableShares returns the CPU shares of all Burstable pods together.
func burstableShares(pods []*v1.Pod) uint64 {
	var milli int64
	for _, pod := range pods {
		if QOS(pod) == v1.PodQOSBurstable {
			requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
			milli += requests.Cpu().MilliValue()
		}
	}
	return uint64(shares(milli))
}
