// Package scheduling defines the kinds of scheduling.k8s.io/v1, one file per kind.
package scheduling

import "hyperkube/internal/api"

// Resources returns all resources of the group.
func Resources() []*api.Resource {
	return []*api.Resource{priorityClass().Resource()}
}
