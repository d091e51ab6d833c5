// Package storagemigration defines StorageVersionMigration of storagemigration.k8s.io/v1.
package storagemigration

import "hyperkube/internal/api"

// Resources returns all resources of the group.
func Resources() []*api.Resource {
	return []*api.Resource{migration().Resource()}
}
