package teardown

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
)

// stopGrace is how many seconds a container has to end by itself on `down`.
const stopGrace = 10

// graceOf is how many seconds a container of a pod with these labels has to end by
// itself. DNS would answer on for some, and nobody is left to ask.
func graceOf(labels map[string]string) int64 {
	if labels["k8s-app"] == "kube-dns" && labels[cri.LabelPodNamespace] == "kube-system" {
		return 0
	}
	return stopGrace
}

// stages are the parts of a control plane's static pods that are stopped after
// all else, in this order: what is left of the others' requests is answered.
var stages = []string{"kube-apiserver", "etcd"}

// stageOf tells when a pod is stopped.
func stageOf(labels map[string]string) int {
	if labels["tier"] != "control-plane" {
		return 0
	}
	return 1 + slices.Index(stages, labels["component"])
}

// removalPatience bounds the removal of one pod.
const removalPatience = 2 * time.Minute

// removePods stops and removes everything that the runtime runs, etcd last.
// Before etcd it calls last, if that is not nil. It goes on after an error, and returns all.
func removePods(ctx context.Context, runtime runtimeapi.RuntimeServiceClient, last func()) (int, error) {
	sandboxes, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return 0, fmt.Errorf("listing pods: %w", err)
	}
	stage, grace := map[string]int{}, map[string]int64{} // by sandbox
	for _, s := range sandboxes.Items {
		stage[s.Id], grace[s.Id] = stageOf(s.Labels), graceOf(s.Labels)
	}
	containers, err := runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return 0, fmt.Errorf("listing containers: %w", err)
	}
	stopErrs := make([]error, len(containers.Containers))
	for now := 0; now <= len(stages); now++ {
		if now == len(stages) && last != nil {
			last()
		}
		var group errgroup.Group
		group.SetLimit(32)
		for i, c := range containers.Containers {
			if stage[c.PodSandboxId] != now {
				continue
			}
			group.Go(func() error {
				if _, err := runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.Id, Timeout: grace[c.PodSandboxId]}); err != nil {
					stopErrs[i] = fmt.Errorf("stopping container %s: %w", c.Id, err)
				}
				return nil
			})
		}
		_ = group.Wait() // stopErrs has them
	}
	// One that cannot be removed must not keep the others.
	errs := make([]error, len(sandboxes.Items))
	var group errgroup.Group
	group.SetLimit(16)
	for i, s := range sandboxes.Items {
		group.Go(func() error {
			errs[i] = removePod(ctx, runtime, s)
			return nil
		})
	}
	_ = group.Wait() // errs has them
	return len(sandboxes.Items), errors.Join(append(stopErrs, errs...)...)
}

// removePod stops and removes a sandbox with all that is in it.
func removePod(ctx context.Context, runtime runtimeapi.RuntimeServiceClient, s *runtimeapi.PodSandbox) error {
	ctx, cancel := context.WithTimeout(ctx, removalPatience)
	defer cancel()
	if _, err := runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.Id}); err != nil {
		return fmt.Errorf("stopping pod %s/%s: %w", s.Metadata.Namespace, s.Metadata.Name, err)
	}
	if _, err := runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id}); err != nil {
		return fmt.Errorf("removing pod %s/%s: %w", s.Metadata.Namespace, s.Metadata.Name, err)
	}
	return nil
}
