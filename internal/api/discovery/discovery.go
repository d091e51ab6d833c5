// Package discovery describes the kinds of discovery.k8s.io/v1, one file a
// kind.
package discovery

import "hyperkube/internal/api"

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{endpointSlice().Resource()}
}
