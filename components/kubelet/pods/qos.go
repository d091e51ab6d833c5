package pods

import (
	"path"
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
}

// weigh brings the weight up to date with the pods that there are.
func (m *Manager) weigh() {
	if m.host.Cgroups == nil {
		return
	}
	b := &m.balance
	b.mu.Lock()
	defer b.mu.Unlock()
	want := burstableShares(m.Active())
	if want == b.written {
		return
	}
	// The cgroup is there before the first pod is.
	name := path.Dir(m.host.cgroup("", v1.PodQOSBurstable))
	if err := m.host.Cgroups.Set(name, cgroup.Resources{CPUShares: want}); err != nil {
		m.host.Log.Warn("giving burstable pods their weight failed", "cgroup", name, "error", err)
		return
	}
	b.written = want
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
