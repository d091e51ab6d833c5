// Package discovery defines the kinds of discovery.k8s.io/v1, one file per kind.
package discovery

import "hyperkube/internal/api"

// Resources returns all resources of the group.
func Resources() []*api.Resource {
	return []*api.Resource{endpointSlice().Resource()}
}
