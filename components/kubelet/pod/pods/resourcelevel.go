package pods

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/internal/host/cgroup"
)

// podLevelResources returns a copy of the pod-level resources.
//
// https://kubernetes.io/docs/tasks/configure-pod-container/assign-pod-level-resources/
func podLevelResources(pod *v1.Pod) *v1.ResourceRequirements {
	if pod.Spec.Resources == nil {
		return &v1.ResourceRequirements{}
	}
	return pod.Spec.Resources.DeepCopy()
}

// initLevel initializes the actual pod-level resources. If a resize was pending before the
// kubelet's restart, they are those of the last status. The caller must hold mu.
func (w *worker) initLevel() {
	if w.level != nil {
		return
	}
	level := podLevelResources(w.pod)
	if last := w.report.last; last.Phase == v1.PodRunning && last.Resources != nil {
		for _, name := range resizable {
			for _, l := range []struct{ of, had v1.ResourceList }{{level.Requests, last.Resources.Requests}, {level.Limits, last.Resources.Limits}} {
				if old, ok := l.had[name]; ok && !l.of[name].Equal(old) {
					if _, asked := l.of[name]; asked {
						l.of[name] = old
					}
				}
			}
		}
	}
	w.level = level
	w.limitsRelaxed = slices.ContainsFunc(w.report.last.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodResizeInProgress })
}

// levelDiffers reports whether the pod-level resources are to be resized. The caller must hold mu.
func (w *worker) levelDiffers() bool {
	if w.level == nil {
		return false
	}
	want := w.pod.Spec.Resources
	if want == nil {
		want = &v1.ResourceRequirements{}
	}
	return slices.ContainsFunc(resizable, func(name v1.ResourceName) bool {
		return !w.level.Requests[name].Equal(want.Requests[name]) || !w.level.Limits[name].Equal(want.Limits[name])
	})
}

// actual returns the pod with its actual resources if a resize is pending or in progress, otherwise
// the pod. It must not be modified. The caller must hold mu.
func (w *worker) actual() *v1.Pod {
	off := w.levelDiffers()
	if len(w.actuated) == 0 && !off {
		return w.pod
	}
	p := *w.pod
	for _, list := range []*[]v1.Container{&p.Spec.InitContainers, &p.Spec.Containers} {
		*list = slices.Clone(*list)
		for i := range *list {
			if old, ok := w.actuated[(*list)[i].Name]; ok {
				(*list)[i].Resources = old
			}
		}
	}
	if off {
		p.Spec.Resources = w.level
	}
	return &p
}

const minMilliCPULimit = 10 // minQuota in the default period

// statusResources returns the pod-level resources for the status: the actual ones and the allocated
// requests. The caller must hold mu.
//
// https://kep.k8s.io/5419
func (w *worker) statusResources() (has *v1.ResourceRequirements, given v1.ResourceList) {
	w.initLevel()
	allocated, actual := w.pod, w.actual()
	if w.resize != nil && w.resize.kind == v1.PodResizePending {
		allocated = actual
	}
	var opts resource.PodResourcesOptions
	given = resource.PodRequests(allocated, opts)
	has = podLevelResources(actual)
	if w.report.last.Phase != v1.PodRunning {
		has = podLevelResources(allocated)
		has.Requests, has.Limits = given.DeepCopy(), resource.PodLimits(allocated, opts)
		return has, given
	}
	requests, limits, bound := resource.PodRequests(actual, opts), resource.PodLimits(actual, opts), w.host.podResources(actual)
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

// checkMemoryUsage checks that no memory limit is decreased below the current usage, because the kernel would
// kill the container. With restart, the pod is checked only after the containers to restart have
// exited.
func (h *host) checkMemoryUsage(ctx context.Context, pod *v1.Pod, final cgroup.Resources, list []containerResize, restart bool) error {
	var errs []error
	if h.Limits.Cgroups != nil && final.MemoryLimit > 0 && !restart {
		// If the usage is unknown, the kernel enforces the limit.
		now, err := h.Limits.Cgroups.Stats(h.cgroups.ofPod(pod))
		shrinks := err == nil && (now.MemoryLimit == 0 || uint64(final.MemoryLimit) < now.MemoryLimit)
		if shrinks && now.MemoryUsage >= uint64(final.MemoryLimit) {
			errs = append(errs, fmt.Errorf("attempting to set pod memory limit (%d) below current usage (%d)", final.MemoryLimit, now.MemoryUsage))
		}
	}
	for _, r := range list {
		if !r.shrinks || r.restart {
			continue
		}
		resp, err := h.CRI.Runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: r.id})
		switch used := resp.GetStats().GetMemory().GetUsageBytes().GetValue(); {
		case cri.IsNotFound(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("missing container %q memory usage", r.name))
		case used >= uint64(r.want.MemoryLimitInBytes):
			errs = append(errs, fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", r.name, r.want.MemoryLimitInBytes, used))
		}
	}
	return utilerrors.NewAggregate(errs)
}
