// Package networking defines the kinds of networking.k8s.io/v1, one file per kind.
package networking

import "hyperkube/internal/api"

const (
	group   = "networking.k8s.io"
	version = "v1"
)

// Resources returns the definitions of the resources of the API group networking.k8s.io, in all served versions.
// Package catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{
		ingressClass().Resource(),
		ingress().Resource(),
		ipAddress().Resource(),
		networkPolicy().Resource(),
		serviceCIDR().Resource(),
	}
}
