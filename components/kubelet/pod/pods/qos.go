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

// qosWeights updates the cgroup of all Burstable pods when pods change: its CPU weight is the sum of their
// CPU requests, because the cgroups of Guaranteed pods are its siblings and a busy Guaranteed pod would
// otherwise starve all Burstable pods. It also updates the memory protection of that cgroup.
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

// update sets the CPU weight and, with tiered memory protection, the memory protection of the Burstable cgroup
// for the current pods. It is called when the total requests of all pods may have changed. It writes only
// values that have changed, and does nothing if pods have no cgroups. Errors are logged, and the next call
// retries.
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
		b.log.Warn("setting CPU weight of the cgroup of all Burstable pods failed; these pods keep their previous CPU share, retrying when a pod is added, resized or removed", "cgroup", name, "err", err)
		return
	}
	b.written = want
}

// protectMemory sets the memory protection of the cgroups of all pods and of Burstable pods to the sum of their
// pods, because a cgroup's protection is limited by that of its parent. active are the pods, and burstable is
// the path of the Burstable cgroup. It does nothing if the sums have not changed. An error is logged, and the
// next call retries. The caller must hold b.mu.
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
		b.log.Warn("setting memory protection of the cgroups of all pods failed; the kernel may reclaim memory that pods have requested, retrying when a pod is added, resized or removed", "cgroup", burstable, "err", err)
		return
	}
	b.guaranteed, b.burstable = hard, soft
	b.metrics.MemoryProtected(hard, soft)
}

// burstableShares returns the CPU shares that correspond to the total CPU requests of the Burstable pods.
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
