package pods

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/internal/host/cgroup"
)

// minMilliCPULimit is the smallest CPU limit in millicores that a cgroup can have: minQuota in the default
// period of 100 ms. A pod's status does not show the actual CPU limit if it is not larger.
const minMilliCPULimit = 10

// statusResources returns the resources of the whole pod for its status: has are the actual ones
// (status.resources), and given are the allocated requests (status.allocatedResources). Until the API shows the
// pod as Running, has are the resources of its spec. While a resize is pending, given are those before the
// resize. The caller must hold the worker's mu.
//
// https://kep.k8s.io/5419
func (r *reporter) statusResources() (has *v1.ResourceRequirements, given v1.ResourceList) {
	m := r.worker.machine
	m.Resize.InitLevel(m.Pod, r.last)
	allocated, actual := m.Pod, m.Resize.Actual(m.Pod)
	if s := m.Resize.State; s != nil && s.Kind == v1.PodResizePending {
		allocated = actual
	}
	var opts resource.PodResourcesOptions
	given = resource.PodRequests(allocated, opts)
	has = podmachine.PodLevelResources(actual)
	if r.last.Phase != v1.PodRunning {
		has = podmachine.PodLevelResources(allocated)
		has.Requests, has.Limits = given.DeepCopy(), resource.PodLimits(allocated, opts)
		return has, given
	}
	requests, limits, bound := resource.PodRequests(actual, opts), resource.PodLimits(actual, opts), r.worker.host.limits.podResources(actual)
	set := func(list *v1.ResourceList, name v1.ResourceName, from v1.ResourceList) {
		if q, ok := from[name]; ok {
			if *list == nil {
				*list = v1.ResourceList{}
			}
			(*list)[name] = q
		}
	}
	if max(requests.Cpu().MilliValue(), has.Requests.Cpu().MilliValue()) > minShares {
		set(&has.Requests, v1.ResourceCPU, requests)
	}
	if _, ok := has.Requests[v1.ResourceMemory]; !ok {
		set(&has.Requests, v1.ResourceMemory, requests)
	}
	if bound.CPUQuota > 0 && max(limits.Cpu().MilliValue(), has.Limits.Cpu().MilliValue()) > minMilliCPULimit {
		set(&has.Limits, v1.ResourceCPU, limits)
	}
	if bound.MemoryLimit > 0 {
		set(&has.Limits, v1.ResourceMemory, limits)
	}
	return has, given
}

// checkMemoryUsage returns an error if a resize would decrease a memory limit below the current usage of the
// pod or of a container of list, because the kernel would kill a process, or if the usage of such a container
// cannot be read. final are the pod's new resources. With restart, only containers are checked, because the
// pod's limit decreases only after the containers to restart have exited. Containers to restart are not
// checked.
func (r *resizer) checkMemoryUsage(ctx context.Context, pod *v1.Pod, final cgroup.Resources, list []resizedContainer, restart bool) error {
	var errs []error
	if r.limits.Cgroups != nil && final.MemoryLimit > 0 && !restart {
		// If the usage is unknown, the kernel enforces the limit.
		now, err := r.limits.Cgroups.Stats(r.cgroups.ofPod(pod))
		shrinks := err == nil && (now.MemoryLimit == 0 || uint64(final.MemoryLimit) < now.MemoryLimit)
		if shrinks && now.MemoryUsage >= uint64(final.MemoryLimit) {
			errs = append(errs, fmt.Errorf("attempting to set pod memory limit (%d) below current usage (%d)", final.MemoryLimit, now.MemoryUsage))
		}
	}
	for _, c := range list {
		if !c.Shrinks || c.Restart {
			continue
		}
		resp, err := r.cri.Runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: c.ID})
		switch used := resp.GetStats().GetMemory().GetUsageBytes().GetValue(); {
		case cri.IsNotFound(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("missing container %q memory usage", c.Name))
		case used >= uint64(c.want.MemoryLimitInBytes):
			errs = append(errs, fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", c.Name, c.want.MemoryLimitInBytes, used))
		}
	}
	return utilerrors.NewAggregate(errs)
}
