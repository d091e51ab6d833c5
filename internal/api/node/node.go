// Package node describes the kinds of node.k8s.io/v1, one file a kind.
package node

import "hyperkube/internal/api"

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{runtimeClass().Resource()}
}
