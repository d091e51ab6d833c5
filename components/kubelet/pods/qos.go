package pods

import (
	"path"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"hyperkube/internal/cgroup"
)

// balance keeps the weight that burstable pods have together beside guaranteed
// ones, which have theirs each: as much as they ask for. Without it a busy
// guaranteed pod would leave them next to nothing.
//
// https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/
type balance struct {
	mu sync.Mutex
	// written is what the cgroup has; 0 before the first time.
	written uint64
	// guaranteed and burstable are the bytes of memory that are kept.
	guaranteed, burstable int64
}

// weigh brings the weight up to date with the pods that there are.
func (m *Manager) weigh() {
	if m.host.Limits.Cgroups == nil {
		return
	}
	b := &m.balance
	b.mu.Lock()
	defer b.mu.Unlock()
	active := m.Active()
	// The cgroup is there before the first pod is.
	name := m.host.CgroupOfClass(v1.PodQOSBurstable)
	if m.host.Limits.Tiered {
		m.keep(active, name)
	}
	want := burstableShares(active)
	if want == b.written {
		return
	}
	if err := m.host.Limits.Cgroups.Set(name, cgroup.Resources{CPUShares: want}); err != nil {
		m.host.Log.Warn("giving burstable pods their weight failed", "cgroup", name, "error", err)
		return
	}
	b.written = want
}

// keep keeps as much memory for all pods together, and for the burstable ones, whose
// cgroup it is, as each of them is to have: what is below has no more than what is
// above. The caller holds balance.mu.
func (m *Manager) keep(active []*v1.Pod, burstable string) {
	b := &m.balance
	hard, soft := keptMemory(active)
	if hard == b.guaranteed && soft == b.burstable {
		return
	}
	text := func(n int64) string { return strconv.FormatInt(n, 10) }
	err := m.host.Limits.Cgroups.Set(path.Dir(burstable), cgroup.Resources{Unified: map[string]string{memoryMin: text(hard + soft), memoryLow: text(soft)}})
	if err == nil {
		err = m.host.Limits.Cgroups.Set(burstable, cgroup.Resources{Unified: map[string]string{memoryLow: text(soft)}})
	}
	if err != nil {
		m.host.Log.Warn("keeping memory for pods failed", "cgroup", burstable, "error", err)
		return
	}
	b.guaranteed, b.burstable = hard, soft
	m.host.Metrics.MemoryKept(hard, soft)
}

// burstableShares is the weight of all burstable pods together.
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
