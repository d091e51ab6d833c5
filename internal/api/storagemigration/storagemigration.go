// Package storagemigration defines StorageVersionMigration of storagemigration.k8s.io/v1.
package storagemigration

import "hyperkube/internal/api"

// Resources returns the definitions of the resources of the API group storagemigration.k8s.io, in all served versions.
// Package catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{migration().Resource()}
}
