// Package core defines the kinds of the core/v1 API group, one file per kind. Pod has its own
// package. See package api for the format of the definitions.
package core

import (
	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
)

// Resources returns all resources of core/v1, including ComponentStatus, which is not stored.
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
