// Package scheduling defines the kinds of scheduling.k8s.io/v1, one file per kind.
package scheduling

import "hyperkube/internal/api"

// Resources returns the definitions of the resources of the API group scheduling.k8s.io, in all served versions.
// Package catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{priorityClass().Resource()}
}
