// Package storage defines the kinds of storage.k8s.io/v1, one file per kind.
package storage

import "hyperkube/internal/api"

const (
	group   = "storage.k8s.io"
	version = "v1"
)

// Resources returns all resources of the group.
func Resources() []*api.Resource {
	return []*api.Resource{
		csiDriver().Resource(),
		csiNode().Resource(),
		csiStorageCapacity().Resource(),
		storageClass().Resource(),
		volumeAttachment().Resource(),
		volumeAttributesClass().Resource(),
	}
}
