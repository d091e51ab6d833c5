// Package node defines the kinds of node.k8s.io/v1, one file per kind.
package node

import "hyperkube/internal/api"

// Resources returns the definitions of the resources of the API group node.k8s.io, in all served versions. Package
// catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{runtimeClass().Resource()}
}
