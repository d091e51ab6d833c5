//go:build cgo

package runtime

import (
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The streaming forms of the lists, for nodes whose lists are longer than a
// message (KEP-5825).

// perMessage is how many items go into one message.
const perMessage = 500

func inChunks[T any](items []T, send func([]T) error) error {
	for chunk := range slices.Chunk(items, perMessage) {
		if err := send(chunk); err != nil {
			return err
		}
	}
	return nil
}

// StreamPodSandboxes is ListPodSandbox in pieces.
func (r *Runtime) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, stream runtimeapi.RuntimeService_StreamPodSandboxesServer) error {
	return inChunks(r.listSandboxes(req.GetFilter()), func(items []*runtimeapi.PodSandbox) error {
		return stream.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: items})
	})
}

// StreamContainers is ListContainers in pieces.
func (r *Runtime) StreamContainers(req *runtimeapi.StreamContainersRequest, stream runtimeapi.RuntimeService_StreamContainersServer) error {
	return inChunks(r.listContainers(req.GetFilter()), func(items []*runtimeapi.Container) error {
		return stream.Send(&runtimeapi.StreamContainersResponse{Containers: items})
	})
}

// StreamImages is ListImages in pieces.
func (r *Runtime) StreamImages(req *runtimeapi.StreamImagesRequest, stream runtimeapi.ImageService_StreamImagesServer) error {
	return inChunks(r.listImages(req.GetFilter()), func(items []*runtimeapi.Image) error {
		return stream.Send(&runtimeapi.StreamImagesResponse{Images: items})
	})
}

// StreamContainerStats is ListContainerStats in pieces.
func (r *Runtime) StreamContainerStats(req *runtimeapi.StreamContainerStatsRequest, stream runtimeapi.RuntimeService_StreamContainerStatsServer) error {
	list, err := r.listContainerStats(req.GetFilter())
	if err != nil {
		return err
	}
	return inChunks(list, func(items []*runtimeapi.ContainerStats) error {
		return stream.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: items})
	})
}

// StreamPodSandboxStats is ListPodSandboxStats in pieces.
func (r *Runtime) StreamPodSandboxStats(req *runtimeapi.StreamPodSandboxStatsRequest, stream runtimeapi.RuntimeService_StreamPodSandboxStatsServer) error {
	list, err := r.listPodStats(req.GetFilter())
	if err != nil {
		return err
	}
	return inChunks(list, func(items []*runtimeapi.PodSandboxStats) error {
		return stream.Send(&runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: items})
	})
}

// StreamPodSandboxMetrics is ListPodSandboxMetrics in pieces.
func (r *Runtime) StreamPodSandboxMetrics(_ *runtimeapi.StreamPodSandboxMetricsRequest, stream runtimeapi.RuntimeService_StreamPodSandboxMetricsServer) error {
	return inChunks(r.podMetrics(), func(items []*runtimeapi.PodSandboxMetrics) error {
		return stream.Send(&runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: items})
	})
}
