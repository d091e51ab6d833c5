package autoscaling

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

// names returns the names of HorizontalPodAutoscalers in paths, discovery and kubectl. v1 and v2 have the same names.
func names() api.Names {
	return api.Names{
		Kind:       "HorizontalPodAutoscaler",
		Plural:     "horizontalpodautoscalers",
		ShortNames: []string{"hpa"},
		Categories: []string{"all"},
	}
}

func horizontalPodAutoscaler() api.Kind[*autoscalingv2.HorizontalPodAutoscaler] {
	return api.Kind[*autoscalingv2.HorizontalPodAutoscaler]{
		Names:   names(),
		Group:   group,
		Version: "v2",
		Scope:   api.Namespaced,
		New:     func() *autoscalingv2.HorizontalPodAutoscaler { return &autoscalingv2.HorizontalPodAutoscaler{} },
		NewList: func() runtime.Object { return &autoscalingv2.HorizontalPodAutoscalerList{} },
		Default: defaultAutoscaler,
		PrepareCreate: func(_ context.Context, h *autoscalingv2.HorizontalPodAutoscaler) {
			h.Status = autoscalingv2.HorizontalPodAutoscalerStatus{}
			h.Generation = 1
		},
		Validate: func(_ context.Context, h *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
			return validateSpec(&h.Spec, nil, field.NewPath("spec"))
		},
		Update: api.KindUpdate[*autoscalingv2.HorizontalPodAutoscaler]{
			Prepare: prepareUpdate,
			Validate: func(_ context.Context, h, old *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
				return validateSpec(&h.Spec, &old.Spec, field.NewPath("spec"))
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*autoscalingv2.HorizontalPodAutoscaler]{
			"status": {
				Prepare: prepareStatus,
				Validate: func(_ context.Context, h, _ *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
					return validateStatus(&h.Status, field.NewPath("status"))
				},
				ResetFields: [][]string{{"spec"}},
			},
		},
		Columns: columns(),
		Row:     row,
	}
}

// prepareUpdate reverts changes of the status and increments the generation if the spec has changed.
func prepareUpdate(_ context.Context, h, old *autoscalingv2.HorizontalPodAutoscaler) {
	old.Status.DeepCopyInto(&h.Status)
	h.Generation = old.Generation
	if !apiequality.Semantic.DeepEqual(h.Spec, old.Spec) {
		h.Generation++
	}
}

// prepareStatus reverts changes of the spec in a status update.
func prepareStatus(_ context.Context, h, old *autoscalingv2.HorizontalPodAutoscaler) {
	old.Spec.DeepCopyInto(&h.Spec)
	h.Generation = old.Generation
}

// defaultMetrics returns the metrics of autoscalers that specify none: 80% average CPU utilization.
func defaultMetrics() []autoscalingv2.MetricSpec {
	percent := int32(80)
	return []autoscalingv2.MetricSpec{{
		Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{
			Name:   corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
		},
	}}
}

// defaultAutoscaler sets the defaults of an autoscaler: at least one replica, defaultMetrics, and the rules of a
// behavior if it has one.
func defaultAutoscaler(h *autoscalingv2.HorizontalPodAutoscaler) {
	api.SetDefault(&h.Spec.MinReplicas, 1)
	if len(h.Spec.Metrics) == 0 {
		h.Spec.Metrics = defaultMetrics()
	}
	if b := h.Spec.Behavior; b != nil {
		defaultBehavior(b)
	}
}

// defaultBehavior sets missing scaling rules of both directions to upstream's defaults.
func defaultBehavior(b *autoscalingv2.HorizontalPodAutoscalerBehavior) {
	api.SetDefault(&b.ScaleUp, autoscalingv2.HPAScalingRules{})
	api.SetDefault(&b.ScaleDown, autoscalingv2.HPAScalingRules{})
	zero := int32(0)
	defaultRules(b.ScaleUp, &zero, []autoscalingv2.HPAScalingPolicy{
		{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
		{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
	})
	defaultRules(b.ScaleDown, nil, []autoscalingv2.HPAScalingPolicy{
		{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
	})
}

// defaultRules sets the missing values of the scaling rules of one direction. window is the default stabilization
// window, nil for the one of the controller.
func defaultRules(r *autoscalingv2.HPAScalingRules, window *int32, policies []autoscalingv2.HPAScalingPolicy) {
	api.SetDefault(&r.SelectPolicy, autoscalingv2.MaxChangePolicySelect)
	if r.StabilizationWindowSeconds == nil {
		r.StabilizationWindowSeconds = window
	}
	if r.Policies == nil {
		r.Policies = policies
	}
}

func columns() []metav1.TableColumnDefinition {
	spec, status := autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc(), autoscalingv2.HorizontalPodAutoscalerStatus{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		api.NameColumn,
		api.Column("Reference", "string", spec["scaleTargetRef"]),
		api.Column("Targets", "string", spec["metrics"]),
		api.Column("MinPods", "string", spec["minReplicas"]),
		api.Column("MaxPods", "string", spec["maxReplicas"]),
		api.Column("Replicas", "string", status["currentReplicas"]),
		api.AgeColumn,
	}
}

// row returns the cells of an autoscaler, among others its target, metrics and numbers of replicas.
func row(h *autoscalingv2.HorizontalPodAutoscaler) []any {
	least := "<unset>"
	if h.Spec.MinReplicas != nil {
		least = strconv.Itoa(int(*h.Spec.MinReplicas))
	}
	return []any{
		h.Name, h.Spec.ScaleTargetRef.Kind + "/" + h.Spec.ScaleTargetRef.Name, formatTargets(h.Spec.Metrics, h.Status.CurrentMetrics),
		least, int64(h.Spec.MaxReplicas), int64(h.Status.CurrentReplicas), api.Age(h.CreationTimestamp),
	}
}

// formatTargets returns the table cell with the current and target values of the first two metrics,
// and the number of others. current is in the order of specs and may be shorter.
func formatTargets(specs []autoscalingv2.MetricSpec, current []autoscalingv2.MetricStatus) string {
	if len(specs) == 0 {
		return "<none>"
	}
	const most = 2
	var list []string
	for i := range specs {
		if i == most {
			break
		}
		var is *autoscalingv2.MetricStatus
		if i < len(current) {
			is = &current[i]
		}
		list = append(list, target(&specs[i], is))
	}
	out := strings.Join(list, ", ")
	if more := len(specs) - most; more > 0 {
		return fmt.Sprintf("%s + %d more...", out, more)
	}
	return out
}

// target returns the current and the target value of a metric for the table, such as "cpu: 10%/80%". status may be nil;
// the current value is then "<unknown>".
func target(spec *autoscalingv2.MetricSpec, status *autoscalingv2.MetricStatus) string {
	const unknown = "<unknown>"
	show := func(is *autoscalingv2.MetricValueStatus, want *autoscalingv2.MetricTarget) string {
		current := unknown
		switch {
		case want.AverageUtilization != nil:
			if is != nil && is.AverageUtilization != nil {
				current = fmt.Sprintf("%d%%", *is.AverageUtilization)
			}
			return fmt.Sprintf("%s/%d%%", current, *want.AverageUtilization)
		case want.AverageValue != nil:
			if is != nil && is.AverageValue != nil {
				current = is.AverageValue.String()
			}
			return fmt.Sprintf("%s/%s (avg)", current, want.AverageValue.String())
		case want.Value != nil:
			if is != nil && is.Value != nil {
				current = is.Value.String()
			}
			return fmt.Sprintf("%s/%s", current, want.Value.String())
		}
		return unknown + "/<auto>"
	}
	trim := func(s string) string { return strings.TrimSuffix(s, " (avg)") }
	var is *autoscalingv2.MetricValueStatus
	switch {
	case spec.Type == autoscalingv2.ExternalMetricSourceType && spec.External != nil:
		if status != nil && status.External != nil {
			is = &status.External.Current
		}
		return show(is, &spec.External.Target)
	case spec.Type == autoscalingv2.PodsMetricSourceType && spec.Pods != nil:
		if status != nil && status.Pods != nil {
			is = &status.Pods.Current
		}
		return trim(show(is, &spec.Pods.Target))
	case spec.Type == autoscalingv2.ObjectMetricSourceType && spec.Object != nil:
		if status != nil && status.Object != nil {
			is = &status.Object.Current
		}
		return show(is, &spec.Object.Target)
	case spec.Type == autoscalingv2.ResourceMetricSourceType && spec.Resource != nil:
		if status != nil && status.Resource != nil {
			is = &status.Resource.Current
		}
		return fmt.Sprintf("%s: %s", spec.Resource.Name, trim(show(is, &spec.Resource.Target)))
	case spec.Type == autoscalingv2.ContainerResourceMetricSourceType && spec.ContainerResource != nil:
		if status != nil && status.ContainerResource != nil {
			is = &status.ContainerResource.Current
		}
		return fmt.Sprintf("%s/%s: %s", spec.ContainerResource.Name, spec.ContainerResource.Container,
			trim(show(is, &spec.ContainerResource.Target)))
	}
	return "<unknown type>"
}
