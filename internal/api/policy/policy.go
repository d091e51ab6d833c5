// Package policy describes the kinds of policy/v1, one file a kind. Eviction is
// a subresource of pods.
package policy

import "hyperkube/internal/api"

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{podDisruptionBudget().Resource()}
}
