//go:build cgo

package runtime

import (
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Streaming variants of the list calls, for nodes whose lists exceed the maximum message size
// (KEP-5825).

// itemsPerMessage is the maximum number of items in one message of a streaming list call.
const itemsPerMessage = 500

// sendChunks calls send with successive parts of items of at most itemsPerMessage each, until send returns an error.
func sendChunks[T any](items []T, send func([]T) error) error {
	for chunk := range slices.Chunk(items, itemsPerMessage) {
		if err := send(chunk); err != nil {
			return err
		}
	}
	return nil
}

// StreamPodSandboxes is the streaming variant of ListPodSandbox.
func (ss *sandboxService) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, stream runtimeapi.RuntimeService_StreamPodSandboxesServer) error {
	return sendChunks(ss.list(req.GetFilter()), func(items []*runtimeapi.PodSandbox) error {
		return stream.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: items})
	})
}

// StreamContainers is the streaming variant of ListContainers.
func (cs *containerService) StreamContainers(req *runtimeapi.StreamContainersRequest, stream runtimeapi.RuntimeService_StreamContainersServer) error {
	return sendChunks(cs.list(req.GetFilter()), func(items []*runtimeapi.Container) error {
		return stream.Send(&runtimeapi.StreamContainersResponse{Containers: items})
	})
}

// StreamImages is the streaming variant of ListImages.
func (is *imageService) StreamImages(req *runtimeapi.StreamImagesRequest, stream runtimeapi.ImageService_StreamImagesServer) error {
	return sendChunks(is.list(req.GetFilter()), func(items []*runtimeapi.Image) error {
		return stream.Send(&runtimeapi.StreamImagesResponse{Images: items})
	})
}

// StreamContainerStats is the streaming variant of ListContainerStats.
func (ss *statsService) StreamContainerStats(req *runtimeapi.StreamContainerStatsRequest, stream runtimeapi.RuntimeService_StreamContainerStatsServer) error {
	list, err := ss.listContainerStats(req.GetFilter())
	if err != nil {
		return err
	}
	return sendChunks(list, func(items []*runtimeapi.ContainerStats) error {
		return stream.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: items})
	})
}

// StreamPodSandboxStats is the streaming variant of ListPodSandboxStats.
func (ss *statsService) StreamPodSandboxStats(req *runtimeapi.StreamPodSandboxStatsRequest, stream runtimeapi.RuntimeService_StreamPodSandboxStatsServer) error {
	list, err := ss.listPodStats(req.GetFilter())
	if err != nil {
		return err
	}
	return sendChunks(list, func(items []*runtimeapi.PodSandboxStats) error {
		return stream.Send(&runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: items})
	})
}

// StreamPodSandboxMetrics is the streaming variant of ListPodSandboxMetrics.
func (ms *metricsService) StreamPodSandboxMetrics(_ *runtimeapi.StreamPodSandboxMetricsRequest, stream runtimeapi.RuntimeService_StreamPodSandboxMetricsServer) error {
	return sendChunks(ms.podMetrics(), func(items []*runtimeapi.PodSandboxMetrics) error {
		return stream.Send(&runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: items})
	})
}
