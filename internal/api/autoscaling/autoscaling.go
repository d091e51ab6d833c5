// Package autoscaling describes HorizontalPodAutoscaler, in autoscaling/v2, in
// which it is stored, and in v1. Scale is a subresource of others.
package autoscaling

import "hyperkube/internal/api"

const group = "autoscaling"

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{
		horizontalPodAutoscaler().Resource(),
		horizontalPodAutoscalerV1().Resource(),
	}
}
