// Package coordination defines the kinds of coordination.k8s.io/v1, one file per kind.
package coordination

import "hyperkube/internal/api"

// Resources returns all resources of the group.
func Resources() []*api.Resource {
	return []*api.Resource{lease().Resource()}
}
