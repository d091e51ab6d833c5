// Package policy defines the kinds of policy/v1, one file per kind. Eviction is a subresource of
// pods.
package policy

import "hyperkube/internal/api"

// Resources returns the definitions of the resources of the API group policy, in all served versions. Package catalog
// collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{podDisruptionBudget().Resource()}
}
