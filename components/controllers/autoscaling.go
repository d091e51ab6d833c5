package controllers

import (
	"fmt"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"

	"hyperkube/components/controllers/horizontalpodautoscaling"
)

// autoscalingDescriptors returns the descriptions of the controllers that scale workloads, with which New creates
// them. It is a part of descriptors.
func autoscalingDescriptors() []descriptor {
	return []descriptor{
		{name: "horizontal-pod-autoscaler-controller", alias: "horizontalpodautoscaling", user: "horizontal-pod-autoscaler", source: "horizontal-pod-autoscaler", workers: 5,
			needs: []schema.GroupVersionResource{autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers")},
			make:  makeAutoscaler},
	}
}

// makeAutoscaler creates the horizontal pod autoscaler with clients for scale subresources and metrics APIs.
func makeAutoscaler(d *deps) (runner, error) {
	// The discovery mapper sends no request before the first autoscaler exists.
	found := d.clients.Kube.Discovery()
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))
	scales, err := scale.NewForConfig(d.clients.REST, mapper, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(found))
	if err != nil {
		return nil, fmt.Errorf("creating scale client: %w", err)
	}
	cfg := d.Autoscaling
	cfg.Mapper, cfg.Scales = mapper, scales
	cfg.Metrics = horizontalpodautoscaling.REST{Client: found.RESTClient(), Mapper: mapper}
	return horizontalpodautoscaling.New(d.env, cfg)
}
