// Package apps defines the kinds of apps/v1, one file per kind. template.go contains what the kinds
// with a pod template share.
package apps

import (
	"hyperkube/internal/api"
)

const (
	group   = "apps"
	version = "v1"
)

// Resources returns the definitions of the resources of the API group apps, in all served versions. Package catalog
// collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{
		controllerRevision().Resource(),
		daemonSet().Resource(),
		deployment().Resource(),
		replicaSet().Resource(),
		statefulSet().Resource(),
	}
}
