// Package core describes the kinds of the core/v1 API group, one file a kind;
// Pod has a folder of its own. See package api for what a description holds.
package core

import (
	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
)

// Resources are all kinds of core/v1 that are stored, and ComponentStatus,
// which only looks like one.
func Resources() []*api.Resource {
	return []*api.Resource{
		configMap().Resource(),
		namespace().Resource(),
		secret().Resource(),
		serviceAccount().Resource(),
		node().Resource(),
		pod.Kind().Resource(),
		service().Resource(),
		endpoints().Resource(),
		event().Resource(),
		podTemplate().Resource(),
		replicationController().Resource(),
		persistentVolume().Resource(),
		persistentVolumeClaim().Resource(),
		resourceQuota().Resource(),
		limitRange().Resource(),
		componentStatus().Resource(),
	}
}
