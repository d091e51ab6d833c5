// Package node defines the kinds of node.k8s.io/v1, one file per kind.
package node

import "hyperkube/internal/api"

// Resources returns all resources of the group.
func Resources() []*api.Resource {
	return []*api.Resource{runtimeClass().Resource()}
}
