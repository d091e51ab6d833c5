// Package coordination describes the kinds of coordination.k8s.io/v1, one file
// a kind.
package coordination

import "hyperkube/internal/api"

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{lease().Resource()}
}
