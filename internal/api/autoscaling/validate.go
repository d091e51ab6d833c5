package autoscaling

import (
	"errors"
	"fmt"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

const (
	maxPeriod        = 1800 // seconds
	maxStabilization = 3600 // seconds
)

// validateSpec validates an autoscaler's spec. old is the spec of the stored object, nil on create;
// API versions that upstream did not validate in the past are then only validated if they have
// changed.
func validateSpec(spec, old *autoscalingv2.HorizontalPodAutoscalerSpec, path *field.Path) field.ErrorList {
	e := &validate.Errors{}
	if spec.MinReplicas != nil && *spec.MinReplicas < 0 {
		e.Declared(field.Invalid(path.Child("minReplicas"), *spec.MinReplicas, "must be greater than or equal to 0"))
	}
	switch {
	case spec.MaxReplicas == 0:
		e.Declared(field.Required(path.Child("maxReplicas"), ""))
	case spec.MaxReplicas < 0:
		e.Declared(field.Invalid(path.Child("maxReplicas"), spec.MaxReplicas, "must be greater than or equal to 1"))
	}
	errs := e.List
	if spec.MinReplicas != nil && spec.MaxReplicas < *spec.MinReplicas {
		errs = append(errs, field.Invalid(path.Child("maxReplicas"), spec.MaxReplicas, "must be greater than or equal to `minReplicas`"))
	}
	target := path.Child("scaleTargetRef")
	errs = append(errs, validateRef(&spec.ScaleTargetRef, target)...)
	if old == nil || old.ScaleTargetRef.APIVersion != spec.ScaleTargetRef.APIVersion || old.ScaleTargetRef.Kind != spec.ScaleTargetRef.Kind {
		// ReplicationController is the only scalable kind in the core group.
		errs = append(errs, validateAPIVersion(&spec.ScaleTargetRef, spec.ScaleTargetRef.Kind != "ReplicationController", target)...)
	}
	checkVersions := old == nil || !slices.ContainsFunc(old.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil && len(validateAPIVersion(&m.Object.DescribedObject, false, nil)) > 0
	})
	for i := range spec.Metrics {
		errs = append(errs, validateMetric(&spec.Metrics[i], checkVersions, path.Child("metrics").Index(i))...)
	}
	// Pod metrics are not available without pods.
	if spec.MinReplicas != nil && *spec.MinReplicas == 0 && !slices.ContainsFunc(spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	}) {
		errs = append(errs, field.Forbidden(path.Child("metrics"), "must specify at least one Object or External metric to support scaling to zero replicas"))
	}
	if b := spec.Behavior; b != nil {
		errs = append(errs, validateRules(b.ScaleUp, path.Child("behavior", "scaleUp"))...)
		errs = append(errs, validateRules(b.ScaleDown, path.Child("behavior", "scaleDown"))...)
	}
	return errs
}

// validateAPIVersion validates the apiVersion of a reference to a scale target or described object.
// If wantGroup is set, it rejects the core group.
func validateAPIVersion(ref *autoscalingv2.CrossVersionObjectReference, wantGroup bool, path *field.Path) field.ErrorList {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err == nil && wantGroup && gv.Group == "" {
		err = errors.New("apiVersion must specify API group")
	}
	if err == nil {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("apiVersion"), ref.APIVersion, err.Error())}
}

func validateRef(ref *autoscalingv2.CrossVersionObjectReference, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct{ name, value string }{{"kind", ref.Kind}, {"name", ref.Name}} {
		if f.value == "" {
			errs = append(errs, field.Required(path.Child(f.name), ""))
			continue
		}
		for _, msg := range pathvalidation.IsValidPathSegmentName(f.value) {
			errs = append(errs, field.Invalid(path.Child(f.name), f.value, msg))
		}
	}
	return errs
}

// validateRules validates the rules for scaling in one direction: at least one policy, and limits of the stabilization
// window and of the period of a policy. nil is valid.
func validateRules(r *autoscalingv2.HPAScalingRules, path *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	var errs field.ErrorList
	if w := r.StabilizationWindowSeconds; w != nil {
		at := path.Child("stabilizationWindowSeconds")
		if *w < 0 {
			errs = append(errs, field.Invalid(at, *w, "must be greater than or equal to zero"))
		}
		if *w > maxStabilization {
			errs = append(errs, field.Invalid(at, *w, fmt.Sprintf("must be less than or equal to %v", maxStabilization)))
		}
	}
	selects := []autoscalingv2.ScalingPolicySelect{autoscalingv2.DisabledPolicySelect, autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect}
	if s := r.SelectPolicy; s != nil && !slices.Contains(selects, *s) {
		errs = append(errs, field.NotSupported(path.Child("selectPolicy"), *s, selects))
	}
	policies := path.Child("policies")
	if len(r.Policies) == 0 {
		errs = append(errs, field.Required(policies, "must specify at least one Policy"))
	}
	types := []autoscalingv2.HPAScalingPolicyType{autoscalingv2.PercentScalingPolicy, autoscalingv2.PodsScalingPolicy}
	for i, p := range r.Policies {
		at := policies.Index(i)
		if !slices.Contains(types, p.Type) {
			errs = append(errs, field.NotSupported(at.Child("type"), p.Type, types))
		}
		if p.Value <= 0 {
			errs = append(errs, field.Invalid(at.Child("value"), p.Value, "must be greater than zero"))
		}
		if p.PeriodSeconds <= 0 {
			errs = append(errs, field.Invalid(at.Child("periodSeconds"), p.PeriodSeconds, "must be greater than zero"))
		}
		if p.PeriodSeconds > maxPeriod {
			errs = append(errs, field.Invalid(at.Child("periodSeconds"), p.PeriodSeconds, fmt.Sprintf("must be less than or equal to %v", maxPeriod)))
		}
	}
	if r.Tolerance != nil {
		e := &validate.Errors{}
		e.NonNegativeQuantity(path.Child("tolerance"), *r.Tolerance)
		errs = append(errs, e.List...)
	}
	return errs
}

// metricSource describes one of the five fields of a metric that can specify its source, such as
// "pods".
type metricSource struct {
	name string
	typ  autoscalingv2.MetricSourceType
	set  bool
	// check is called if the field is set.
	check func(at *field.Path) field.ErrorList
}

// metricSources returns the five possible sources of a metric in order of precedence. checkVersions
// is set if the API version of an object metric is validated.
func metricSources(m *autoscalingv2.MetricSpec, checkVersions bool) []metricSource {
	return []metricSource{
		{"object", autoscalingv2.ObjectMetricSourceType, m.Object != nil, func(at *field.Path) field.ErrorList { return validateObjectMetric(m.Object, checkVersions, at) }},
		{"external", autoscalingv2.ExternalMetricSourceType, m.External != nil, func(at *field.Path) field.ErrorList { return validateExternalMetric(m.External, at) }},
		{"pods", autoscalingv2.PodsMetricSourceType, m.Pods != nil, func(at *field.Path) field.ErrorList { return validatePodsMetric(m.Pods, at) }},
		{"resource", autoscalingv2.ResourceMetricSourceType, m.Resource != nil, func(at *field.Path) field.ErrorList { return validateResourceMetric(m.Resource, at) }},
		{"containerResource", autoscalingv2.ContainerResourceMetricSourceType, m.ContainerResource != nil, func(at *field.Path) field.ErrorList { return validateContainerMetric(m.ContainerResource, at) }},
	}
}

// validateMetric validates a metric, which must have a source for its type and no other source. If several sources are
// set, only the first of them is validated. checkVersions specifies whether the API version of a referenced object is
// checked.
func validateMetric(m *autoscalingv2.MetricSpec, checkVersions bool, path *field.Path) field.ErrorList {
	types := []autoscalingv2.MetricSourceType{
		autoscalingv2.ContainerResourceMetricSourceType, autoscalingv2.ExternalMetricSourceType, autoscalingv2.ObjectMetricSourceType,
		autoscalingv2.PodsMetricSourceType, autoscalingv2.ResourceMetricSourceType,
	}
	var errs field.ErrorList
	if m.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), "must specify a metric source type"))
	}
	if !slices.Contains(types, m.Type) {
		errs = append(errs, field.NotSupported(path.Child("type"), m.Type, types))
	}
	sources := metricSources(m, checkVersions)
	if i := slices.IndexFunc(sources, func(s metricSource) bool { return s.set }); i >= 0 {
		errs = append(errs, sources[i].check(path.Child(sources[i].name))...)
	}
	set := 0
	for _, s := range sources {
		if s.set {
			set++
		}
		if s.typ == m.Type && !s.set {
			errs = append(errs, field.Required(path.Child(s.name), "must populate information for the given metric source"))
		}
	}
	if set == 1 {
		return errs
	}
	for _, s := range sources {
		if s.set && s.typ != m.Type {
			errs = append(errs, field.Forbidden(path.Child(s.name), "must populate the given metric source only"))
		}
	}
	return errs
}

func validateObjectMetric(m *autoscalingv2.ObjectMetricSource, checkVersions bool, at *field.Path) field.ErrorList {
	errs := validateRef(&m.DescribedObject, at.Child("describedObject"))
	if checkVersions {
		errs = append(errs, validateAPIVersion(&m.DescribedObject, false, at.Child("describedObject"))...)
	}
	errs = append(errs, validateIdentifier(&m.Metric, at.Child("metric"))...)
	errs = append(errs, validateTarget(&m.Target, at.Child("target"))...)
	if m.Target.Value == nil && m.Target.AverageValue == nil {
		errs = append(errs, field.Required(at.Child("target", "averageValue"), "must set either a target value or averageValue"))
	}
	return errs
}

func validateExternalMetric(m *autoscalingv2.ExternalMetricSource, at *field.Path) field.ErrorList {
	errs := validateIdentifier(&m.Metric, at.Child("metric"))
	errs = append(errs, validateTarget(&m.Target, at.Child("target"))...)
	switch {
	case m.Target.Value == nil && m.Target.AverageValue == nil:
		errs = append(errs, field.Required(at.Child("target", "averageValue"), "must set either a target value for metric or a per-pod target"))
	case m.Target.Value != nil && m.Target.AverageValue != nil:
		errs = append(errs, field.Forbidden(at.Child("target", "value"), "may not set both a target value for metric and a per-pod target"))
	}
	return errs
}

func validatePodsMetric(m *autoscalingv2.PodsMetricSource, at *field.Path) field.ErrorList {
	errs := validateIdentifier(&m.Metric, at.Child("metric"))
	errs = append(errs, validateTarget(&m.Target, at.Child("target"))...)
	if m.Target.AverageValue == nil {
		errs = append(errs, field.Required(at.Child("target", "averageValue"), "must specify a positive target averageValue"))
	}
	return errs
}

func validateResourceMetric(m *autoscalingv2.ResourceMetricSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), "must specify a resource name"))
	}
	return append(errs, validateResourceTarget(&m.Target, at.Child("target"))...)
}

func validateContainerMetric(m *autoscalingv2.ContainerResourceMetricSource, at *field.Path) field.ErrorList {
	e := &validate.Errors{}
	if m.Name == "" {
		e.Required(at.Child("name"), "must specify a resource name")
	} else {
		validate.ContainerResourceName(e, at.Child("name"), m.Name)
	}
	if m.Container == "" {
		e.Required(at.Child("container"), "must specify a container")
	} else {
		e.Label(at.Child("container"), m.Container)
	}
	return append(e.List, validateResourceTarget(&m.Target, at.Child("target"))...)
}

func validateIdentifier(id *autoscalingv2.MetricIdentifier, path *field.Path) field.ErrorList {
	if id.Name == "" {
		return field.ErrorList{field.Required(path.Child("name"), "must specify a metric name")}
	}
	var errs field.ErrorList
	for _, msg := range pathvalidation.IsValidPathSegmentName(id.Name) {
		errs = append(errs, field.Invalid(path.Child("name"), id.Name, msg))
	}
	return errs
}

func validateResourceTarget(t *autoscalingv2.MetricTarget, path *field.Path) field.ErrorList {
	errs := validateTarget(t, path)
	switch {
	case t.AverageUtilization == nil && t.AverageValue == nil:
		errs = append(errs, field.Required(path.Child("averageUtilization"), "must set either a target raw value or a target utilization"))
	case t.AverageUtilization != nil && t.AverageValue != nil:
		errs = append(errs, field.Forbidden(path.Child("averageValue"), "may not set both a target raw value and a target utilization"))
	}
	return errs
}

// validateTarget validates the target of a metric. The values that are set must be positive; whether the type requires
// one of them is not checked here.
func validateTarget(t *autoscalingv2.MetricTarget, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	types := []autoscalingv2.MetricTargetType{autoscalingv2.AverageValueMetricType, autoscalingv2.UtilizationMetricType, autoscalingv2.ValueMetricType}
	if t.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), "must specify a metric target type"))
	}
	if !slices.Contains(types, t.Type) {
		errs = append(errs, field.Invalid(path.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue"))
	}
	if t.Value != nil && t.Value.Sign() != 1 {
		errs = append(errs, field.Invalid(path.Child("value"), t.Value, "must be positive"))
	}
	if t.AverageValue != nil && t.AverageValue.Sign() != 1 {
		errs = append(errs, field.Invalid(path.Child("averageValue"), t.AverageValue, "must be positive"))
	}
	if t.AverageUtilization != nil && *t.AverageUtilization < 1 {
		errs = append(errs, field.Invalid(path.Child("averageUtilization"), t.AverageUtilization, "must be greater than 0"))
	}
	return errs
}

func validateStatus(s *autoscalingv2.HorizontalPodAutoscalerStatus, path *field.Path) field.ErrorList {
	errs := append(apivalidation.ValidateNonnegativeField(int64(s.CurrentReplicas), path.Child("currentReplicas")),
		apivalidation.ValidateNonnegativeField(int64(s.DesiredReplicas), path.Child("desiredReplicas"))...)
	for i, c := range s.Conditions {
		if c.ObservedGeneration != nil {
			errs = append(errs, apivalidation.ValidateNonnegativeField(*c.ObservedGeneration, path.Child("conditions").Index(i).Child("observedGeneration"))...)
		}
	}
	return errs
}
