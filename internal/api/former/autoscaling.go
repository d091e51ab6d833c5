package former

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/runtime"

	"hyperkube/internal/api"
	"hyperkube/internal/api/autoscaling"
)

// autoscalingVersions returns the reader of HorizontalPodAutoscalers in v1, which has metrics other
// than CPU in annotations.
func autoscalingVersions() []version {
	return []version{
		{"HorizontalPodAutoscaler", autoscalingv2.SchemeGroupVersion, autoscalingv1.SchemeGroupVersion, func(decode func(into runtime.Object) error, into api.Object) error {
			old := &autoscalingv1.HorizontalPodAutoscaler{}
			if err := decode(old); err != nil {
				return err
			}
			now, err := autoscaling.ToV2(old)
			if err != nil {
				return err
			}
			*into.(*autoscalingv2.HorizontalPodAutoscaler) = *now
			return nil
		}},
	}
}
