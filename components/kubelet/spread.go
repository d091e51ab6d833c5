package kubelet

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
	"hyperkube/internal/lifecycle"
)

// movesContainers is what of the runtime moves containers to other CPUs.
type movesContainers interface {
	ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error)
	UpdateContainerResources(context.Context, *runtimeapi.UpdateContainerResourcesRequest, ...grpc.CallOption) (*runtimeapi.UpdateContainerResourcesResponse, error)
}

// spreader keeps containers on the CPUs that they may use. Its methods are safe for
// several goroutines.
type spreader struct {
	runtime movesContainers
	// of are the CPUs of a container, its own or those that it shares.
	of  func(pod types.UID, container string) (set cpuset.CPUSet, own bool)
	log *slog.Logger
	// again has an element when some container may not be where it belongs.
	again chan struct{}
}

func newSpreader(runtime movesContainers, of func(types.UID, string) (cpuset.CPUSet, bool), log *slog.Logger) *spreader {
	return &spreader{runtime: runtime, of: of, log: log, again: make(chan struct{}, 1)}
}

// Bounds of the time between attempts to move containers.
const (
	spreadFirst = time.Second
	spreadMost  = 10 * time.Second
)

// Run tries again to move what could not be moved, until ctx ends.
func (s *spreader) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.again:
		}
		for pause := spreadFirst; ; pause = min(2*pause, spreadMost) {
			if !lifecycle.Pause(ctx, pause) {
				return nil
			}
			if s.all(ctx) == nil {
				break
			}
		}
	}
}

// now puts all containers that run on the CPUs that they may use now. What fails is
// tried again by Run.
func (s *spreader) now(ctx context.Context) {
	if err := s.all(ctx); err != nil {
		s.log.Warn("changing the CPUs of containers failed, trying again", "error", err)
		s.later()
	}
}

func (s *spreader) later() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

func (s *spreader) all(ctx context.Context) error {
	list, err := s.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return fmt.Errorf("asking for the containers whose CPUs have changed: %w", err)
	}
	var errs []error
	for _, c := range list.Containers {
		set, _ := s.of(types.UID(c.Labels[cri.LabelPodUID]), c.Labels[cri.LabelContainerName])
		errs = append(errs, s.move(ctx, c.Id, set))
	}
	return errors.Join(errs...)
}

func (s *spreader) move(ctx context.Context, id string, to cpuset.CPUSet) error {
	_, err := s.runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: to.String()},
	})
	if err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("container %s: %w", id, err)
	}
	return nil
}

// started moves a container that was started on CPUs which are others by now: it was
// not there yet when all others were moved.
func (s *spreader) started(ctx context.Context, pod *v1.Pod, container, id string, cfg *runtimeapi.ContainerConfig) {
	set, _ := s.of(pod.UID, container)
	if set.String() == cfg.GetLinux().GetResources().GetCpusetCpus() {
		return
	}
	if err := s.move(ctx, id, set); err != nil {
		s.log.Warn("changing the CPUs of a container failed, trying again", "error", err)
		s.later()
	}
}
