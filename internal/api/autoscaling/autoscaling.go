// Package autoscaling defines HorizontalPodAutoscaler in autoscaling/v2, the storage version, and
// in autoscaling/v1. Scale is a subresource of other resources.
package autoscaling

import "hyperkube/internal/api"

const group = "autoscaling"

// Resources returns the definitions of the resources of the API group autoscaling, in all served versions. Package
// catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{
		horizontalPodAutoscaler().Resource(),
		horizontalPodAutoscalerV1().Resource(),
	}
}
