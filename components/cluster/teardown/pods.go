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

// stopGracePeriod is the grace period of containers on `down`, in seconds.
const stopGracePeriod = 10

// gracePeriod returns the grace period of containers in a pod with these labels, in seconds. It is 0
// for cluster DNS, which otherwise keeps answering for some seconds although no client is left.
func gracePeriod(labels map[string]string) int64 {
	if labels["k8s-app"] == "kube-dns" && labels[cri.LabelPodNamespace] == "kube-system" {
		return 0
	}
	return stopGracePeriod
}

// finalStages are the components of a control plane in static pods that are stopped last, in this order.
// So they can still answer the requests of the other pods.
var finalStages = []string{"kube-apiserver", "etcd"}

// stageOf returns the number of the stage in which a pod with these labels is stopped: 0, or a later one for the
// components in finalStages.
func stageOf(labels map[string]string) int {
	if labels["tier"] != "control-plane" {
		return 0
	}
	return 1 + slices.Index(finalStages, labels["component"])
}

// removalTimeout limits the removal of one pod.
const removalTimeout = 2 * time.Minute

// removePods stops and removes all pods of the runtime, etcd last. Before it stops etcd, it calls
// last, if that is not nil. It returns the number of pods that had running containers: completed pods and
// pods from before a reboot are only removed. It continues after errors and returns all of them.
func removePods(ctx context.Context, runtime runtimeapi.RuntimeServiceClient, last func()) (int, error) {
	sandboxes, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return 0, fmt.Errorf("listing pods: %w", err)
	}
	stage, grace := map[string]int{}, map[string]int64{} // by sandbox ID
	for _, s := range sandboxes.Items {
		stage[s.Id], grace[s.Id] = stageOf(s.Labels), gracePeriod(s.Labels)
	}
	containers, err := runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return 0, fmt.Errorf("listing containers: %w", err)
	}
	running := map[string]bool{} // by sandbox ID
	for _, c := range containers.Containers {
		running[c.PodSandboxId] = true
	}
	stopErrs := make([]error, len(containers.Containers))
	for current := 0; current <= len(finalStages); current++ {
		if current == len(finalStages) && last != nil {
			last()
		}
		var group errgroup.Group
		group.SetLimit(32)
		for i, c := range containers.Containers {
			if stage[c.PodSandboxId] != current {
				continue
			}
			group.Go(func() error {
				if _, err := runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.Id, Timeout: grace[c.PodSandboxId]}); err != nil {
					stopErrs[i] = fmt.Errorf("stopping container %s: %w", c.Id, err)
				}
				return nil
			})
		}
		_ = group.Wait() // stopErrs contains the errors
	}
	// A pod that cannot be removed must not prevent the removal of others.
	errs := make([]error, len(sandboxes.Items))
	var group errgroup.Group
	group.SetLimit(16)
	for i, s := range sandboxes.Items {
		group.Go(func() error {
			errs[i] = removePod(ctx, runtime, s)
			return nil
		})
	}
	_ = group.Wait() // errs contains the errors
	return len(running), errors.Join(append(stopErrs, errs...)...)
}

// removePod stops and removes a pod sandbox with its containers.
func removePod(ctx context.Context, runtime runtimeapi.RuntimeServiceClient, s *runtimeapi.PodSandbox) error {
	ctx, cancel := context.WithTimeout(ctx, removalTimeout)
	defer cancel()
	if _, err := runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.Id}); err != nil {
		return fmt.Errorf("stopping pod %s/%s: %w", s.Metadata.Namespace, s.Metadata.Name, err)
	}
	if _, err := runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id}); err != nil {
		return fmt.Errorf("removing pod %s/%s: %w", s.Metadata.Namespace, s.Metadata.Name, err)
	}
	return nil
}
