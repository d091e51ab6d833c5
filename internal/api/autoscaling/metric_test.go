package autoscaling

import (
	"slices"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestMetricSources(t *testing.T) {
	one := resource.MustParse("1")
	of := func(kind autoscalingv2.MetricTargetType, value, average *resource.Quantity) autoscalingv2.MetricTarget {
		return autoscalingv2.MetricTarget{Type: kind, Value: value, AverageValue: average}
	}
	value, average := of(autoscalingv2.ValueMetricType, &one, nil), of(autoscalingv2.AverageValueMetricType, nil, &one)
	none, both := of(autoscalingv2.ValueMetricType, nil, nil), of(autoscalingv2.ValueMetricType, &one, &one)
	name := autoscalingv2.MetricIdentifier{Name: "m"}
	ref := autoscalingv2.CrossVersionObjectReference{Kind: "Service", Name: "s", APIVersion: "v1"}
	pods := &autoscalingv2.PodsMetricSource{Metric: name, Target: average}
	for what, c := range map[string]struct {
		metric autoscalingv2.MetricSpec
		want   []string
	}{
		"nothing":   {autoscalingv2.MetricSpec{}, []string{"metric.type: Required value: must specify a metric source type", "metric.type: Unsupported value"}},
		"an object": {autoscalingv2.MetricSpec{Type: "Object", Object: &autoscalingv2.ObjectMetricSource{DescribedObject: ref, Metric: name, Target: value}}, nil},
		"an object without a target": {
			autoscalingv2.MetricSpec{Type: "Object", Object: &autoscalingv2.ObjectMetricSource{DescribedObject: ref, Metric: name, Target: none}},
			[]string{"metric.object.target.averageValue: Required value: must set either a target value or averageValue"},
		},
		"an object without version": {
			autoscalingv2.MetricSpec{Type: "Object", Object: &autoscalingv2.ObjectMetricSource{
				DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Ingress", Name: "s", APIVersion: "a/b/c"}, Metric: name, Target: value,
			}},
			[]string{"metric.object.describedObject.apiVersion: Invalid value"},
		},
		"external": {autoscalingv2.MetricSpec{Type: "External", External: &autoscalingv2.ExternalMetricSource{Metric: name, Target: value}}, nil},
		"external without a target": {
			autoscalingv2.MetricSpec{Type: "External", External: &autoscalingv2.ExternalMetricSource{Metric: name, Target: none}},
			[]string{"metric.external.target.averageValue: Required value: must set either a target value for metric or a per-pod target"},
		},
		"external with two targets": {
			autoscalingv2.MetricSpec{Type: "External", External: &autoscalingv2.ExternalMetricSource{Metric: name, Target: both}},
			[]string{"metric.external.target.value: Forbidden: may not set both a target value for metric and a per-pod target"},
		},
		"pods": {autoscalingv2.MetricSpec{Type: "Pods", Pods: pods}, nil},
		"pods by value": {
			autoscalingv2.MetricSpec{Type: "Pods", Pods: &autoscalingv2.PodsMetricSource{Metric: name, Target: value}},
			[]string{"metric.pods.target.averageValue: Required value: must specify a positive target averageValue"},
		},
		"a resource": {autoscalingv2.MetricSpec{Type: "Resource", Resource: &autoscalingv2.ResourceMetricSource{Name: "cpu", Target: average}}, nil},
		"a resource without a name": {
			autoscalingv2.MetricSpec{Type: "Resource", Resource: &autoscalingv2.ResourceMetricSource{Target: average}},
			[]string{"metric.resource.name: Required value: must specify a resource name"},
		},
		"a container's": {autoscalingv2.MetricSpec{Type: "ContainerResource", ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Name: "cpu", Container: "c", Target: average}}, nil},
		"a container metric without names": {
			autoscalingv2.MetricSpec{Type: "ContainerResource", ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Target: average}},
			[]string{"metric.containerResource.name: Required value: must specify a resource name", "metric.containerResource.container: Required value: must specify a container"},
		},
		"a container metric with invalid names": {
			autoscalingv2.MetricSpec{Type: "ContainerResource", ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Name: "disk", Container: "C", Target: average}},
			[]string{
				`metric.containerResource.name: Invalid value: "disk": must be a standard resource type`,
				`metric.containerResource.name: Invalid value: "disk": must be a standard resource for containers`,
				"metric.containerResource.container: Invalid value",
			},
		},
		"a source of another type": {
			autoscalingv2.MetricSpec{Type: "Resource", Pods: pods},
			[]string{"metric.resource: Required value: must populate information for the given metric source"},
		},
		"several": {
			autoscalingv2.MetricSpec{Type: "Pods", Pods: pods, External: &autoscalingv2.ExternalMetricSource{Metric: name, Target: value}},
			[]string{"metric.external: Forbidden: must populate the given metric source only"},
		},
	} {
		var got []string
		for _, err := range validateMetric(&c.metric, true, field.NewPath("metric")) {
			got = append(got, err.Error())
		}
		if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}
