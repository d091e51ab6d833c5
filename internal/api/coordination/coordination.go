// Package coordination defines the kinds of coordination.k8s.io/v1, one file per kind.
package coordination

import "hyperkube/internal/api"

// Resources returns the definitions of the resources of the API group coordination.k8s.io, in all served versions.
// Package catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{lease().Resource()}
}
