package resources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/cri"
	"hyperkube/internal/base/backoff"
)

// ContainerUpdater is the part of the CRI client that lists containers and changes their CPUs.
type ContainerUpdater interface {
	ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error)
	UpdateContainerResources(context.Context, *runtimeapi.UpdateContainerResourcesRequest, ...grpc.CallOption) (*runtimeapi.UpdateContainerResourcesResponse, error)
}

// cpuSetUpdater updates the CPU sets of running containers when the CPUs that they may use have changed. Its
// methods are safe for concurrent use.
type cpuSetUpdater struct {
	runtime ContainerUpdater
	// cpusOf returns the CPUs of a container, and whether they are exclusive.
	cpusOf func(pod types.UID, container string) (set cpuset.CPUSet, own bool)
	log    *slog.Logger
	// retry receives an element when containers may have an outdated CPU set.
	retry chan struct{}
}

// newCPUSetUpdater returns a cpuSetUpdater for the containers of runtime. of returns the CPUs that a container,
// identified by the UID of its pod and its name, may use.
func newCPUSetUpdater(runtime ContainerUpdater, of func(types.UID, string) (cpuset.CPUSet, bool), log *slog.Logger) *cpuSetUpdater {
	return &cpuSetUpdater{runtime: runtime, cpusOf: of, log: log, retry: make(chan struct{}, 1)}
}

// minUpdateBackoff and maxUpdateBackoff are the first and the longest delay before failed updates of CPU sets are
// retried.
const (
	minUpdateBackoff = time.Second
	maxUpdateBackoff = 10 * time.Second
)

// Run retries failed updates with a back-off until ctx is done. The error is always nil.
func (s *cpuSetUpdater) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.retry:
		}
		again := backoff.Backoff{First: minUpdateBackoff, Max: maxUpdateBackoff}
		for {
			if !again.Pause(ctx) {
				return nil
			}
			if s.tryUpdateAll(ctx) == nil {
				break
			}
		}
	}
}

// updateAll updates the CPU sets of all running containers. A failure is logged and retried by Run.
func (s *cpuSetUpdater) updateAll(ctx context.Context) {
	if err := s.tryUpdateAll(ctx); err != nil {
		s.log.Warn("updating CPU sets of containers failed; they may run on CPUs that are exclusive to other containers until a retry succeeds, retrying with back-off", "err", err)
		s.requestRetry()
	}
}

// requestRetry makes Run update all containers. It does not block.
func (s *cpuSetUpdater) requestRetry() {
	select {
	case s.retry <- struct{}{}:
	default:
	}
}

// tryUpdateAll updates the CPU sets of all running containers, and returns the errors of those that failed.
func (s *cpuSetUpdater) tryUpdateAll(ctx context.Context) error {
	list, err := s.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return fmt.Errorf("listing running containers: %w", err)
	}
	var errs []error
	for _, c := range list.Containers {
		set, _ := s.cpusOf(types.UID(c.Labels[cri.LabelPodUID]), c.Labels[cri.LabelContainerName])
		errs = append(errs, s.update(ctx, c.Id, set))
	}
	return errors.Join(errs...)
}

// update sets the CPUs of the container id. A container that does not exist any more is no error.
func (s *cpuSetUpdater) update(ctx context.Context, id string, to cpuset.CPUSet) error {
	_, err := s.runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: to.String()},
	})
	if err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("container %s: %w", id, err)
	}
	return nil
}

// containerStarted updates the CPU set of the container id, which was just started with cfg, if the set has
// changed since cfg was created. updateAll did not include the container, because it was not running yet. A
// failure is logged and retried by Run.
func (s *cpuSetUpdater) containerStarted(ctx context.Context, pod *v1.Pod, container, id string, cfg *runtimeapi.ContainerConfig) {
	set, _ := s.cpusOf(pod.UID, container)
	if set.String() == cfg.GetLinux().GetResources().GetCpusetCpus() {
		return
	}
	if err := s.update(ctx, id, set); err != nil {
		s.log.Warn("updating CPU set of container failed; it may run on CPUs that are exclusive to other containers until a retry succeeds, retrying with back-off", "pod", pod.Namespace+"/"+pod.Name, "container", container, "containerID", id, "err", err)
		s.requestRetry()
	}
}
