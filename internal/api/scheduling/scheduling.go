// Package scheduling describes the kinds of scheduling.k8s.io/v1, one file a
// kind.
package scheduling

import "hyperkube/internal/api"

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{priorityClass().Resource()}
}
