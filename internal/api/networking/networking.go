// Package networking describes the kinds of networking.k8s.io/v1, one file a
// kind.
package networking

import "hyperkube/internal/api"

const (
	group   = "networking.k8s.io"
	version = "v1"
)

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{
		ingressClass().Resource(),
		ingress().Resource(),
		ipAddress().Resource(),
		networkPolicy().Resource(),
		serviceCIDR().Resource(),
	}
}
