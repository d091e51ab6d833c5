// Package catalog combines the kinds of all API groups.
package catalog

import (
	"slices"

	"hyperkube/internal/api"
	"hyperkube/internal/api/admissionregistration"
	"hyperkube/internal/api/apiextensions"
	"hyperkube/internal/api/apiregistration"
	"hyperkube/internal/api/apps"
	"hyperkube/internal/api/authentication"
	"hyperkube/internal/api/authorization"
	"hyperkube/internal/api/autoscaling"
	"hyperkube/internal/api/batch"
	"hyperkube/internal/api/certificates"
	"hyperkube/internal/api/coordination"
	"hyperkube/internal/api/core"
	"hyperkube/internal/api/discovery"
	"hyperkube/internal/api/events"
	"hyperkube/internal/api/flowcontrol"
	"hyperkube/internal/api/networking"
	"hyperkube/internal/api/node"
	"hyperkube/internal/api/policy"
	"hyperkube/internal/api/rbac"
	"hyperkube/internal/api/resource"
	"hyperkube/internal/api/scheduling"
	"hyperkube/internal/api/storage"
	"hyperkube/internal/api/storagemigration"
)

// Resources returns all built-in resources in the order of groups and kinds in discovery. Resources
// that are stored as another kind follow that kind.
func Resources() []*api.Resource {
	return slices.Concat(
		core.Resources(),
		apps.Resources(),
		events.Resources(),
		authentication.Resources(),
		authorization.Resources(),
		autoscaling.Resources(),
		batch.Resources(),
		certificates.Resources(),
		networking.Resources(),
		policy.Resources(),
		rbac.Resources(),
		storage.Resources(),
		scheduling.Resources(),
		apiextensions.Resources(),
		admissionregistration.Resources(),
		coordination.Resources(),
		node.Resources(),
		discovery.Resources(),
		storagemigration.Resources(),
		resource.Resources(),
		apiregistration.Resources(),
		flowcontrol.Resources(),
	)
}
