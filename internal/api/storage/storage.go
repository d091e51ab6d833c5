// Package storage describes the kinds of storage.k8s.io/v1, one file a kind.
package storage

import "hyperkube/internal/api"

const (
	group   = "storage.k8s.io"
	version = "v1"
)

// Resources are all kinds of the group.
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
