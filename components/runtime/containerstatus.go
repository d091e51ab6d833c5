//go:build cgo

package runtime

import (
	"context"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerPhase converts a phase to the CRI container state. Containers in phase starting are still reported as
// created.
func containerPhase(p phase) runtimeapi.ContainerState {
	switch p {
	case phaseRunning:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case phaseExited:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	}
	return runtimeapi.ContainerState_CONTAINER_CREATED
}

// containerStatus converts the persistent state of a container to its CRI status.
func containerStatus(rec containerRecord) *runtimeapi.ContainerStatus {
	st := &runtimeapi.ContainerStatus{
		Id: rec.ID, Metadata: rec.config.GetMetadata(), State: containerPhase(rec.Phase),
		CreatedAt: rec.Created, StartedAt: rec.Started, FinishedAt: rec.Finished, ExitCode: rec.ExitCode,
		Image: rec.config.GetImage(), ImageRef: rec.ImageRef, ImageId: rec.ImageID, Reason: rec.Reason, Message: rec.Message,
		Labels: rec.config.GetLabels(), Annotations: rec.config.GetAnnotations(), Mounts: rec.config.GetMounts(), LogPath: rec.LogPath,
		StopSignal: signalNumber(rec.StopSignal),
	}
	if l := rec.config.GetLinux().GetResources(); l != nil {
		st.Resources = &runtimeapi.ContainerResources{Linux: l}
	}
	if rec.User != nil {
		st.User = &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{Uid: rec.User.UID, Gid: rec.User.GID, SupplementalGroups: rec.User.Groups}}
	}
	return st
}

// ContainerStatus returns the status of a container. With the verbose option, it adds the process ID, the cgroup and
// the OCI specification.
func (cs *containerService) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := cs.inventory.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: containerStatus(c.get())}
	if req.GetVerbose() {
		resp.Info, err = encodeVerbose(cs.info(c))
	}
	return resp, err
}

// ListContainers lists the containers that match the filter, newest first.
func (cs *containerService) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: cs.list(req.GetFilter())}, nil
}

func (cs *containerService) list(filter *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	var items []*runtimeapi.Container
	for _, c := range cs.inventory.allContainers() {
		rec := c.get()
		if !strings.HasPrefix(rec.ID, filter.GetId()) || !strings.HasPrefix(rec.Sandbox, filter.GetPodSandboxId()) ||
			!labelsMatch(filter.GetLabelSelector(), rec.config.GetLabels()) ||
			filter.GetState() != nil && filter.GetState().GetState() != containerPhase(rec.Phase) {
			continue
		}
		items = append(items, &runtimeapi.Container{
			Id: rec.ID, PodSandboxId: rec.Sandbox, Metadata: rec.config.GetMetadata(), Image: rec.config.GetImage(),
			ImageRef: rec.ImageRef, ImageId: rec.ImageID, State: containerPhase(rec.Phase), CreatedAt: rec.Created,
			Labels: rec.config.GetLabels(), Annotations: rec.config.GetAnnotations(),
		})
	}
	slices.SortFunc(items, func(a, b *runtimeapi.Container) int { return int(b.CreatedAt - a.CreatedAt) })
	return items
}
