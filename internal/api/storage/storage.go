// Package storage defines the kinds of storage.k8s.io/v1, one file per kind.
package storage

import "hyperkube/internal/api"

const (
	group   = "storage.k8s.io"
	version = "v1"
)

// Resources returns the definitions of the resources of the API group storage.k8s.io, in all served versions. Package
// catalog collects those of all groups for the API server.
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
