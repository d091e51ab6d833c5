package autoscaling

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

// Annotations of autoscaling/v1 objects. v1 only has a field for CPU utilization; other metrics,
// conditions and the scaling behavior are in annotations, so that v1 clients do not lose them.
const (
	metricsAnnotation        = "autoscaling.alpha.kubernetes.io/metrics"
	currentMetricsAnnotation = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsAnnotation     = "autoscaling.alpha.kubernetes.io/conditions"
	behaviorAnnotation       = "autoscaling.alpha.kubernetes.io/behavior"
)

func horizontalPodAutoscalerV1() api.Kind[*autoscalingv1.HorizontalPodAutoscaler] {
	// v1 objects are validated after conversion to v2.
	in := func(h *autoscalingv1.HorizontalPodAutoscaler, check func(*autoscalingv2.HorizontalPodAutoscaler) field.ErrorList) field.ErrorList {
		v2, err := ToV2(h)
		if err != nil {
			return field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations"), h.Annotations, err.Error())}
		}
		return check(v2)
	}
	spec := func(_ context.Context, h, old *autoscalingv1.HorizontalPodAutoscaler) field.ErrorList {
		return in(h, func(v2 *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
			var was *autoscalingv2.HorizontalPodAutoscalerSpec
			if old != nil {
				if stored, err := ToV2(old); err == nil {
					was = &stored.Spec
				}
			}
			return validateSpec(&v2.Spec, was, field.NewPath("spec"))
		})
	}
	status := func(_ context.Context, h, _ *autoscalingv1.HorizontalPodAutoscaler) field.ErrorList {
		return in(h, func(v2 *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
			return validateStatus(&v2.Status, field.NewPath("status"))
		})
	}
	return api.Kind[*autoscalingv1.HorizontalPodAutoscaler]{
		Names:   names(),
		Group:   group,
		Version: "v1",
		Scope:   api.Namespaced,
		StoredAs: &api.StoredAs{
			GroupVersionKind: autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"),
			ToStored: func(obj api.Object) (api.Object, error) {
				out, err := ToV2(obj.(*autoscalingv1.HorizontalPodAutoscaler))
				if err == nil && out.Spec.Behavior != nil {
					// The annotation may lack values that the field always has.
					defaultBehavior(out.Spec.Behavior)
				}
				return out, err
			},
			FromStored: func(obj api.Object) (api.Object, error) {
				return FromV2(obj.(*autoscalingv2.HorizontalPodAutoscaler))
			},
		},
		New:     func() *autoscalingv1.HorizontalPodAutoscaler { return &autoscalingv1.HorizontalPodAutoscaler{} },
		NewList: func() runtime.Object { return &autoscalingv1.HorizontalPodAutoscalerList{} },
		Default: defaultV1,
		PrepareCreate: func(_ context.Context, h *autoscalingv1.HorizontalPodAutoscaler) {
			h.Status = autoscalingv1.HorizontalPodAutoscalerStatus{}
			keepStatusAnnotations(h, &autoscalingv1.HorizontalPodAutoscaler{})
			h.Generation = 1
		},
		Validate: func(ctx context.Context, h *autoscalingv1.HorizontalPodAutoscaler) field.ErrorList {
			return spec(ctx, h, nil)
		},
		Update: api.KindUpdate[*autoscalingv1.HorizontalPodAutoscaler]{
			Prepare: func(_ context.Context, h, old *autoscalingv1.HorizontalPodAutoscaler) {
				old.Status.DeepCopyInto(&h.Status)
				keepStatusAnnotations(h, old)
				h.Generation = old.Generation
				if changed(h, old) {
					h.Generation++
				}
			},
			Validate:    spec,
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*autoscalingv1.HorizontalPodAutoscaler]{
			"status": {
				Prepare: func(_ context.Context, h, old *autoscalingv1.HorizontalPodAutoscaler) {
					old.Spec.DeepCopyInto(&h.Spec)
					h.Generation = old.Generation
				},
				Validate:    status,
				ResetFields: [][]string{{"spec"}},
			},
		},
		Columns: columns(),
		Row: func(h *autoscalingv1.HorizontalPodAutoscaler) []any {
			v2, err := ToV2(h)
			if err != nil {
				v2 = &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: h.ObjectMeta}
			}
			return row(v2)
		},
	}
}

// defaultV1 sets the defaults of a v1 autoscaler, and normalizes the annotations that represent v2
// fields by converting the object to v2 and back, as upstream does. Invalid annotations are
// dropped.
func defaultV1(h *autoscalingv1.HorizontalPodAutoscaler) {
	api.SetDefault(&h.Spec.MinReplicas, 1)
	v2, err := ToV2(h)
	if err != nil {
		return
	}
	v1, err := FromV2(v2)
	if err != nil {
		return
	}
	v1.TypeMeta = h.TypeMeta
	*h = *v1
}

// changed reports whether two v1 autoscalers have different specs after conversion to v2, so that
// the generation must be incremented. It returns true if a conversion fails.
func changed(h, old *autoscalingv1.HorizontalPodAutoscaler) bool {
	is, err := ToV2(h)
	if err != nil {
		return true
	}
	was, err := ToV2(old)
	if err != nil {
		return true
	}
	// Annotations may lack default values.
	defaultAutoscaler(is)
	defaultAutoscaler(was)
	return !apiequality.Semantic.DeepEqual(is.Spec, was.Spec)
}

// keepStatusAnnotations sets the annotations of h that represent status fields to those of the
// stored object old, because only status updates may change them.
func keepStatusAnnotations(h, old *autoscalingv1.HorizontalPodAutoscaler) {
	for _, key := range []string{currentMetricsAnnotation, conditionsAnnotation} {
		value, ok := old.Annotations[key]
		switch {
		case !ok:
			delete(h.Annotations, key)
		case h.Annotations == nil:
			h.Annotations = map[string]string{key: value}
		default:
			h.Annotations[key] = value
		}
	}
}

// ToV2 converts a v1 autoscaler to autoscaling/v2, the storage version. Annotations that represent
// v2 fields become these fields; invalid ones are treated as missing. The result shares memory with
// in.
func ToV2(in *autoscalingv1.HorizontalPodAutoscaler) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	out := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: in.ObjectMeta,
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
			MinReplicas:    in.Spec.MinReplicas,
			MaxReplicas:    in.Spec.MaxReplicas,
		},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{
			ObservedGeneration: in.Status.ObservedGeneration,
			LastScaleTime:      in.Status.LastScaleTime,
			CurrentReplicas:    in.Status.CurrentReplicas,
			DesiredReplicas:    in.Status.DesiredReplicas,
		},
	}
	if p := in.Status.CurrentCPUUtilizationPercentage; p != nil {
		out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, autoscalingv2.MetricStatus{
			Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricStatus{
				Name:    corev1.ResourceCPU,
				Current: autoscalingv2.MetricValueStatus{AverageUtilization: p},
			},
		})
	}
	out.Annotations = maps.Clone(in.Annotations)
	// As in upstream, an invalid annotation is treated as missing.
	read := func(key string, into any) bool {
		text, ok := out.Annotations[key]
		delete(out.Annotations, key)
		return ok && json.Unmarshal([]byte(text), into) == nil
	}
	var metrics []autoscalingv1.MetricSpec
	if read(metricsAnnotation, &metrics) {
		for i := range metrics {
			out.Spec.Metrics = append(out.Spec.Metrics, metricFromV1(&metrics[i]))
		}
	}
	if p := in.Spec.TargetCPUUtilizationPercentage; p != nil {
		out.Spec.Metrics = append(out.Spec.Metrics, autoscalingv2.MetricSpec{
			Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricSource{
				Name:   corev1.ResourceCPU,
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: p},
			},
		})
	}
	if len(out.Spec.Metrics) == 0 {
		// As in upstream, defaulted here because the annotation may contain metrics.
		out.Spec.Metrics = defaultMetrics()
	}
	var current []autoscalingv1.MetricStatus
	if read(currentMetricsAnnotation, &current) && len(current) > 0 {
		// The annotation contains all metrics, with more details than the field.
		out.Status.CurrentMetrics = nil
		for i := range current {
			out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, statusFromV1(&current[i]))
		}
	}
	var conditions []autoscalingv2.HorizontalPodAutoscalerCondition
	if read(conditionsAnnotation, &conditions) {
		out.Status.Conditions = conditions
	}
	behavior := &autoscalingv2.HorizontalPodAutoscalerBehavior{}
	if read(behaviorAnnotation, behavior) && (behavior.ScaleUp != nil || behavior.ScaleDown != nil) {
		out.Spec.Behavior = behavior
	}
	if len(out.Annotations) == 0 {
		out.Annotations = nil
	}
	return out, nil
}

// FromV2 converts an autoscaler from autoscaling/v2, the storage version, to v1. Fields that v1
// does not have become annotations. The result shares memory with in.
func FromV2(in *autoscalingv2.HorizontalPodAutoscaler) (*autoscalingv1.HorizontalPodAutoscaler, error) {
	out := &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: in.ObjectMeta,
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
			MinReplicas:    in.Spec.MinReplicas,
			MaxReplicas:    in.Spec.MaxReplicas,
		},
		Status: autoscalingv1.HorizontalPodAutoscalerStatus{
			ObservedGeneration: in.Status.ObservedGeneration,
			LastScaleTime:      in.Status.LastScaleTime,
			CurrentReplicas:    in.Status.CurrentReplicas,
			DesiredReplicas:    in.Status.DesiredReplicas,
		},
	}
	var metrics []autoscalingv1.MetricSpec
	for i := range in.Spec.Metrics {
		m := &in.Spec.Metrics[i]
		r := m.Resource
		if out.Spec.TargetCPUUtilizationPercentage == nil && m.Type == autoscalingv2.ResourceMetricSourceType && r != nil &&
			r.Name == corev1.ResourceCPU && r.Target.AverageUtilization != nil {
			out.Spec.TargetCPUUtilizationPercentage = r.Target.AverageUtilization
			continue
		}
		metrics = append(metrics, metricToV1(m))
	}
	var current []autoscalingv1.MetricStatus
	for i := range in.Status.CurrentMetrics {
		m := &in.Status.CurrentMetrics[i]
		if r := m.Resource; out.Status.CurrentCPUUtilizationPercentage == nil && m.Type == autoscalingv2.ResourceMetricSourceType && r != nil &&
			r.Name == corev1.ResourceCPU && r.Current.AverageUtilization != nil {
			out.Status.CurrentCPUUtilizationPercentage = r.Current.AverageUtilization
		}
		current = append(current, statusToV1(m))
	}
	var behavior behavior
	if in.Spec.Behavior != nil {
		behavior = behaviorToV1(in.Spec.Behavior)
	}
	out.Annotations = maps.Clone(in.Annotations)
	for _, a := range []struct {
		key   string
		value any
		set   bool
	}{
		{metricsAnnotation, metrics, len(metrics) > 0},
		{currentMetricsAnnotation, current, len(current) > 0},
		{conditionsAnnotation, in.Status.Conditions, len(in.Status.Conditions) > 0},
		{behaviorAnnotation, behavior, in.Spec.Behavior != nil},
	} {
		if !a.set {
			continue
		}
		text, err := json.Marshal(a.value)
		if err != nil {
			return nil, fmt.Errorf("writing annotation %s: %w", a.key, err)
		}
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		out.Annotations[a.key] = string(text)
	}
	return out, nil
}
