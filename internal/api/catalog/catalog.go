// Package catalog joins the kinds of all API groups.
package catalog

import (
	"slices"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core"
)

// Resources are all built-in resources, in the order in which groups and kinds
// are shown by discovery.
func Resources() []*api.Resource {
	return slices.Concat(
		core.Resources(),
	)
}
