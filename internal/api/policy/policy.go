// Package policy defines the kinds of policy/v1, one file per kind. Eviction is a subresource of
// pods.
package policy

import "hyperkube/internal/api"

// Resources returns all resources of the group.
func Resources() []*api.Resource {
	return []*api.Resource{podDisruptionBudget().Resource()}
}
