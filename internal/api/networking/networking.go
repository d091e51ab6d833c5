// Package networking defines the kinds of networking.k8s.io/v1, one file per kind.
package networking

import "hyperkube/internal/api"

const (
	group   = "networking.k8s.io"
	version = "v1"
)

// Resources returns all resources of the group.
func Resources() []*api.Resource {
	return []*api.Resource{
		ingressClass().Resource(),
		ingress().Resource(),
		ipAddress().Resource(),
		networkPolicy().Resource(),
		serviceCIDR().Resource(),
	}
}
