package pods

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/host/cgroup"
)

// resize executes the operation podmachine.ResizePod: it resizes the running pod as req requests, reports the
// result to the pod's state machine, and executes the decision that follows, such as events and restarts of
// containers. After a successful resize, the deferred resizes of other pods are retried.
func (w *worker) resize(ctx context.Context, req *podmachine.ResizeRequest) {
	began := time.Now()
	result := w.host.resizer.resize(ctx, req, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		d := w.machine.Resize.Started(req)
		w.execute(ctx, &d)
	})
	if result.Kind == v1.PodResizeInProgress {
		w.host.Metrics.Resized(time.Since(began), result.Reason == "")
	}
	if result.Kind == v1.PodResizeInProgress && result.Reason == "" {
		// Other pending resizes may fit now.
		defer w.host.Registry.retryResizes("pod_resized")
	}
	w.update(func() {
		if old := w.machine.Resize.State; old.Deferred() && result.Kind == v1.PodResizeInProgress {
			w.host.Metrics.ResizeAccepted(req.Pod, cmp.Or(old.Trigger, "periodic_retry"), time.Since(req.Since))
		}
		w.cancelOperation = nil
		for _, c := range req.Containers {
			w.fresh.ids[c.ID] = true
		}
		d := w.machine.FinishResize(req, result, time.Now())
		w.execute(ctx, &d)
	})
}

// containerLimits returns the CPU and memory limits that a container's cgroup must have according to the pod spec.
// podmachine compares them with the actual limits to decide whether the container must be resized.
func (l *limiter) containerLimits(pod *v1.Pod, c *v1.Container) podstate.Resources {
	r := l.containerResources(pod, c)
	return podstate.Resources{CPUShares: r.CpuShares, CPUQuota: r.CpuQuota, CPUPeriod: r.CpuPeriod, MemoryLimit: r.MemoryLimitInBytes}
}

// resizer checks whether resizes of pods fit on the node, and sets the limits of running containers.
type resizer struct {
	limits   *limiter
	cgroups  CgroupNames
	weights  *qosWeights
	cri      *cri.Client
	registry *Registry
	admitter Admitter // may be nil
	metrics  *telemetry.Metrics
}

// resizedContainer is a container to resize and its new resources.
type resizedContainer struct {
	podmachine.ContainerResize
	want *runtimeapi.LinuxContainerResources
}

// resizedContainers returns the containers of a resize with their new resources in the CRI's format.
// Containers that the pod spec does not have are omitted.
func (r *resizer) resizedContainers(req *podmachine.ResizeRequest) []resizedContainer {
	var out []resizedContainer
	for _, c := range req.Containers {
		spec, _ := podstate.Find(req.Pod, c.Name)
		if spec == nil {
			continue
		}
		want := r.limits.containerResources(req.Pod, spec)
		// In CRI, zero means unchanged.
		if want.CpuQuota == 0 {
			want.CpuQuota = -1
		}
		if want.MemoryLimitInBytes == 0 {
			want.MemoryLimitInBytes = -1
		}
		out = append(out, resizedContainer{c, want})
	}
	return out
}

// resize sets the limits of the pod's cgroup and its containers, and returns the resulting state:
// PodResizePending if the resize does not fit on the node, also after preemption for a critical pod; otherwise
// PodResizeInProgress, with a reason after an error, such as a memory limit below the current usage. It calls
// begins when the resize is known to fit. An increased pod limit is set before those of the containers, a
// decreased one after them. If containers must be restarted, the pod limit is only increased, because they use
// more until they have exited. The runtime gets the new resources of the sandbox and may reject them.
func (r *resizer) resize(ctx context.Context, req *podmachine.ResizeRequest, begins func()) podmachine.ResizeState {
	pod, list := req.Pod, r.resizedContainers(req)
	if !req.Granted {
		reason, message := r.checkFit(pod)
		if reason == v1.PodReasonDeferred && r.admitter != nil {
			var freed bool
			if freed, message = r.admitter.PreemptForResize(ctx, pod, message); freed {
				reason = ""
			}
		}
		if reason != "" {
			return podmachine.ResizeState{Kind: v1.PodResizePending, Reason: reason, Message: message}
		}
	}
	begins()
	failed := func(err error) podmachine.ResizeState {
		return podmachine.ResizeState{Kind: v1.PodResizeInProgress, Reason: v1.PodReasonError, Message: err.Error()}
	}
	final := r.limits.podResources(pod)
	restart := slices.ContainsFunc(list, func(r resizedContainer) bool { return r.Restart })
	if err := r.checkMemoryUsage(ctx, pod, final, list, restart); err != nil {
		return failed(fmt.Errorf("cannot decrease memory limits: %w", err))
	}
	shrinks := restart // unless known otherwise
	open := cgroup.Resources{CPUShares: final.CPUShares, CPUQuota: cgroup.Unlimited, MemoryLimit: cgroup.Unlimited}
	if restart && r.limits.Cgroups != nil {
		if now, err := r.limits.Cgroups.Stats(r.cgroups.ofPod(pod)); err == nil && now.MemoryLimit > 0 && final.MemoryLimit > 0 {
			open.MemoryLimit = max(int64(now.MemoryLimit), final.MemoryLimit)
			shrinks = open.MemoryLimit > final.MemoryLimit
		}
	}
	if !shrinks {
		if err := r.updateSandboxResources(ctx, pod, req.Sandbox); err != nil {
			return failed(err)
		}
	}
	if r.limits.Cgroups != nil {
		if err := r.limits.Cgroups.Set(r.cgroups.ofPod(pod), open); err != nil {
			return failed(fmt.Errorf("resizing the pod: %w", err))
		}
	}
	for _, c := range list {
		if c.Restart {
			continue
		}
		_, err := r.cri.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: c.ID, Linux: c.want})
		if err != nil && !cri.IsNotFound(err) {
			return failed(fmt.Errorf("resizing container %s: %s", c.Name, cri.Message(err)))
		}
	}
	if r.limits.Cgroups != nil && !restart {
		if err := r.limits.Cgroups.Set(r.cgroups.ofPod(pod), final); err != nil {
			return failed(fmt.Errorf("resizing the pod: %w", err))
		}
		r.weights.update()
	}
	return podmachine.ResizeState{Kind: v1.PodResizeInProgress}
}

// updateSandboxResources passes the new resources of a pod to the runtime: a runtime that runs the pod in a
// virtual machine must resize it. box is the ID of the sandbox, or "" if there is none. A runtime that does
// not support the call is no error.
func (r *resizer) updateSandboxResources(ctx context.Context, pod *v1.Pod, box string) error {
	if box == "" {
		return nil
	}
	own, overhead := r.limits.sandboxResources(pod)
	_, err := r.cri.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: box, Resources: own, Overhead: overhead})
	// Some runtimes do not use the gRPC code Unimplemented.
	if err == nil || cri.IsUnimplemented(err) || strings.Contains(cri.Message(err), "not implemented") {
		return nil
	}
	return fmt.Errorf("the runtime refuses to resize the pod: %s", cri.Message(err))
}

// retryResizes immediately retries the deferred resizes of all pods on which no operation is in progress,
// because resources were freed. trigger is the reason in the metrics.
func (r *Registry) retryResizes(trigger string) {
	r.retry(func(w *worker) bool {
		return w.machine.Operation == podmachine.None && w.machine.Resize.RetryNow(trigger)
	})
}
