package pods

import (
	"log/slog"
	"path"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/host/cgroup"
)

// qosWeights sets the total CPU weight of Burstable pods relative to Guaranteed pods, whose cgroups
// are siblings, to their total requests. Otherwise a busy Guaranteed pod would starve them.
//
// https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/
type qosWeights struct {
	limits   *Limits
	names    CgroupNames
	registry *Registry
	log      *slog.Logger
	metrics  *telemetry.Metrics

	mu sync.Mutex // guards the following fields
	// written is the weight last written; 0 initially.
	written uint64
	// guaranteed and burstable are the protected bytes of memory last written.
	guaranteed, burstable int64
}

// update updates the weight to the current pods. It is called when the total requests of all pods
// may have changed.
func (b *qosWeights) update() {
	if b.limits.Cgroups == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	active := b.registry.Active()
	// The cgroup exists before the first pod.
	name := b.names.OfClass(v1.PodQOSBurstable)
	if b.limits.Tiered {
		b.protectMemory(active, name)
	}
	want := burstableShares(active)
	if want == b.written {
		return
	}
	if err := b.limits.Cgroups.Set(name, cgroup.Resources{CPUShares: want}); err != nil {
		b.log.Warn("setting CPU weight of the Burstable cgroup failed, retrying at the next pod change", "cgroup", name, "err", err)
		return
	}
	b.written = want
}

// protectMemory sets the memory protection of the cgroups of all pods and of Burstable pods to the sum of
// their pods, because a cgroup's protection is limited by that of its parent. The caller must hold
// mu.
func (b *qosWeights) protectMemory(active []*v1.Pod, burstable string) {
	hard, soft := protectedMemory(active)
	if hard == b.guaranteed && soft == b.burstable {
		return
	}
	text := func(n int64) string { return strconv.FormatInt(n, 10) }
	err := b.limits.Cgroups.Set(path.Dir(burstable), cgroup.Resources{Unified: map[string]string{memoryMin: text(hard + soft), memoryLow: text(soft)}})
	if err == nil {
		err = b.limits.Cgroups.Set(burstable, cgroup.Resources{Unified: map[string]string{memoryLow: text(soft)}})
	}
	if err != nil {
		b.log.Warn("setting memory protection of the Burstable cgroup failed, retrying at the next pod change", "cgroup", burstable, "err", err)
		return
	}
	b.guaranteed, b.burstable = hard, soft
	b.metrics.MemoryProtected(hard, soft)
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
