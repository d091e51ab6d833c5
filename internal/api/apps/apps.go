// Package apps describes the kinds of apps/v1, one file a kind. What those
// with a pod template share is in template.go.
package apps

import (
	"hyperkube/internal/api"
)

const (
	group   = "apps"
	version = "v1"
)

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{
		controllerRevision().Resource(),
		daemonSet().Resource(),
		deployment().Resource(),
		replicaSet().Resource(),
		statefulSet().Resource(),
	}
}
