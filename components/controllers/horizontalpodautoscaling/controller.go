// Package horizontalpodautoscaling scales workloads by comparing metrics with the targets of
// HorizontalPodAutoscalers.
//
// https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/
package horizontalpodautoscaling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/scale"

	"hyperkube/components/controllers/internal/control"
)

// Config contains the clients and settings of the autoscaling controller. The zero values of settings are upstream's
// defaults.
type Config struct {
	Metrics Metrics
	Scales  scale.ScalesGetter
	Mapper  meta.RESTMapper

	// SyncPeriod is the interval at which each autoscaler is evaluated.
	SyncPeriod time.Duration
	// Stabilization is the window in which the highest recommendation prevents scaling below it.
	Stabilization time.Duration
	// Tolerance is the minimum relative difference between metric and target that causes scaling.
	Tolerance float64
	// CPUInitialization is the period after pod start in which CPU samples are ignored if the pod
	// is not ready, or if they were taken before it became ready.
	CPUInitialization time.Duration
	// ReadinessDelay is the period after pod start in which a change to not ready does not mean
	// that the pod was ready before: the CPU samples of such a pod are ignored.
	ReadinessDelay time.Duration
}

// Controller evaluates HorizontalPodAutoscalers and scales their targets. Each sync handles one autoscaler. Use New to
// create it.
type Controller struct {
	*control.Loop
	env         control.Env
	cfg         Config
	autoscalers autoscalinglisters.HorizontalPodAutoscalerLister
	pods        corelisters.PodLister

	mu        sync.Mutex
	histories map[string]*scalingHistory // by key; guarded by mu, each entry is used by one worker at a time

	selectors selectors
	metrics   *controllerMetrics
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. cfg must contain
// Metrics, Scales and Mapper. It adds its event handlers to the informers, which the caller then starts before it
// calls Run.
func New(env control.Env, cfg Config) (*Controller, error) {
	env = env.Defaulted()
	if cfg.Metrics == nil || cfg.Scales == nil || cfg.Mapper == nil {
		return nil, errors.New("horizontalpodautoscaling: metrics, scale client, and REST mapper are required")
	}
	for d, byDefault := range map[*time.Duration]time.Duration{
		&cfg.SyncPeriod: 15 * time.Second, &cfg.Stabilization: 5 * time.Minute,
		&cfg.CPUInitialization: 5 * time.Minute, &cfg.ReadinessDelay: 30 * time.Second,
	} {
		if *d <= 0 {
			*d = byDefault
		}
	}
	if cfg.Tolerance <= 0 {
		cfg.Tolerance = 0.1
	}
	autoscalers := env.Informers.Autoscaling().V2().HorizontalPodAutoscalers()
	pods := env.Informers.Core().V1().Pods()
	c := &Controller{env: env, cfg: cfg, autoscalers: autoscalers.Lister(), pods: pods.Lister(), histories: map[string]*scalingHistory{}}
	c.metrics = newControllerMetrics(func() float64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return float64(len(c.histories))
	})
	if err := env.Register(c.metrics.collectors()...); err != nil {
		return nil, err
	}
	c.Loop = control.NewLoop(env, "horizontalpodautoscaler", c.sync)
	c.Await(pods.Informer())
	changed := func(old, h *autoscalingv2.HorizontalPodAutoscaler) {
		// Ignore updates of the status, which this controller writes.
		if !apiequality.Semantic.DeepEqual(old.Spec, h.Spec) {
			c.AddObject(h)
		}
	}
	added := func(h *autoscalingv2.HorizontalPodAutoscaler) { c.AddObject(h) }
	return c, c.Watch(autoscalers.Informer(), control.Handlers(added, changed, added))
}

// sync evaluates the autoscaler with this key and schedules the next evaluation. Errors of metrics or of the target are
// only reported in the status and events, because the next evaluation is a retry.
func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	h, err := c.autoscalers.HorizontalPodAutoscalers(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.mu.Lock()
		delete(c.histories, key)
		c.mu.Unlock()
		c.selectors.forget(key)
		c.metrics.desired.DeleteLabelValues(namespace, name)
		return nil
	}
	if err != nil {
		return err
	}
	// Sync periodically even after an error, because metrics change without events.
	defer c.AddAfter(key, c.cfg.SyncPeriod)
	c.mu.Lock()
	m := c.histories[key]
	if m == nil {
		m = &scalingHistory{}
		c.histories[key] = m
	}
	c.mu.Unlock()
	r := &evaluation{Controller: c, was: h, hpa: h.DeepCopy(), history: m, now: c.env.Clock.Now()}
	did := "none"
	err = r.run(ctx, &did)
	c.metrics.round(did, c.env.Clock.Since(r.now), err)
	if err != nil {
		c.env.Log.DebugContext(ctx, "evaluating HorizontalPodAutoscaler failed, its target may not be scaled, retrying in the next sync period", "horizontalPodAutoscaler", key, "err", err)
	}
	if apiequality.Semantic.DeepEqual(r.was.Status, r.hpa.Status) {
		return nil
	}
	_, err = c.env.Kube.AutoscalingV2().HorizontalPodAutoscalers(namespace).UpdateStatus(ctx, r.hpa, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the next sync uses the current object
	}
	return err
}

// evaluation is the state of one evaluation of one autoscaler: the object before and after it, its scaling history,
// and the values of the metrics. It is not safe for concurrent use.
type evaluation struct {
	*Controller
	was, hpa *autoscalingv2.HorizontalPodAutoscaler
	history  *scalingHistory
	now      time.Time
	// statuses are the metrics' values, in the order of the spec; those of failed metrics are
	// empty.
	statuses []autoscalingv2.MetricStatus
	// partial is the error of failed metrics if other metrics were sufficient.
	partial error
}

// condition sets a condition of the autoscaler in r.hpa.
func (r *evaluation) condition(t autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus, reason, message string) {
	for i := range r.hpa.Status.Conditions {
		if c := &r.hpa.Status.Conditions[i]; c.Type == t {
			if c.Status != status {
				c.LastTransitionTime = metav1.NewTime(r.now)
			}
			c.Status, c.Reason, c.Message = status, reason, message
			return
		}
	}
	r.hpa.Status.Conditions = append(r.hpa.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{
		Type: t, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(r.now),
	})
}

// scale returns the scale subresource of the target and the target's resource. It returns an error if the target does
// not exist or has no scale subresource. If the kind of the target is unknown, it repeats the discovery of the API
// once, because the kind may be new.
func (r *evaluation) scale(ctx context.Context) (*autoscalingv1.Scale, schema.GroupResource, error) {
	ref := r.hpa.Spec.ScaleTargetRef
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, schema.GroupResource{}, specError{fmt.Errorf("invalid API version in scale target reference: %w", err)}
	}
	mappings, err := r.cfg.Mapper.RESTMappings(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if meta.IsNoMatchError(err) {
		meta.MaybeResetRESTMapper(r.cfg.Mapper)
		mappings, err = r.cfg.Mapper.RESTMappings(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	}
	if err != nil {
		return nil, schema.GroupResource{}, fmt.Errorf("unable to determine resource for scale target reference: %w", err)
	}
	for _, m := range mappings {
		target := m.Resource.GroupResource()
		var s *autoscalingv1.Scale
		if s, err = r.cfg.Scales.Scales(r.hpa.Namespace).Get(ctx, target, ref.Name, metav1.GetOptions{}); err == nil {
			return s, target, nil
		}
	}
	return nil, schema.GroupResource{}, err
}

// run evaluates the autoscaler once: it computes the desired size, scales the target, and updates r.hpa, whose status
// the caller writes. It sets did to the action for metrics: "scale_up", "scale_down" or "none".
func (r *evaluation) run(ctx context.Context, did *string) error {
	h := r.hpa
	reference := fmt.Sprintf("%s/%s/%s", h.Spec.ScaleTargetRef.Kind, h.Namespace, h.Spec.ScaleTargetRef.Name)
	s, target, err := r.scale(ctx)
	if err != nil {
		r.env.Events.Event(h, corev1.EventTypeWarning, "FailedGetScale", err.Error())
		r.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale", fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err))
		return fmt.Errorf("failed to query scale subresource for %s: %w", reference, err)
	}
	r.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale", "the HPA controller was able to get the target's current scale")
	current := s.Spec.Replicas
	if len(r.history.recommendations) == 0 {
		r.history.recommendations = []recommendation{{current, r.now}}
	}
	least := int32(1)
	if h.Spec.MinReplicas != nil {
		least = *h.Spec.MinReplicas
	}
	desired, reason := current, ""
	outside, byUs := hasOutsideMetric(h), scaledToZero(h)
	switch {
	case current == 0 && !byUs || current == 0 && least == 0 && !outside:
		r.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
	case current > h.Spec.MaxReplicas:
		desired, reason = h.Spec.MaxReplicas, "Current number of replicas above Spec.MaxReplicas"
	case current < least && current != 0:
		desired, reason = least, "Current number of replicas below Spec.MinReplicas"
	default:
		proposed, metric, err := r.compute(ctx, s)
		if err != nil {
			r.recordObserved(current)
			r.env.Events.Event(h, corev1.EventTypeWarning, "FailedComputeMetricsReplicas", err.Error())
			return fmt.Errorf("failed to compute desired number of replicas based on listed metrics for %s: %w", reference, err)
		}
		switch {
		case proposed > current:
			reason = metric + " above target"
		case proposed < current:
			reason = "All metrics below target"
		}
		desired = r.normalize(current, proposed, limits{least, h.Spec.MaxReplicas})
		if current == 0 && desired < least {
			desired = least
			if reason == "" {
				reason = "Current number of replicas below Spec.MinReplicas"
			}
		}
	}
	if desired != current {
		if err := r.resize(ctx, target, s, desired); err != nil {
			r.env.Events.Eventf(h, corev1.EventTypeWarning, "FailedRescale", "New size: %d; reason: %s; error: %v", desired, reason, err)
			r.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale", fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err))
			r.recordObserved(current)
			return fmt.Errorf("failed to rescale %s: %w", reference, err)
		}
		r.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale", fmt.Sprintf("the HPA controller was able to update the target scale to %d", desired))
		r.env.Events.Eventf(h, corev1.EventTypeNormal, "SuccessfulRescale", "New size: %d; reason: %s", desired, reason)
		if desired == 0 && least == 0 && outside {
			r.condition(autoscalingv2.ScaledToZero, corev1.ConditionTrue, "ScaledToZero", "the HPA controller scaled the workload to zero")
		} else {
			r.condition(autoscalingv2.ScaledToZero, corev1.ConditionFalse, "NotScaledToZero", "the HPA controller did not scale the workload to zero")
		}
		r.history.changed(r.now, current, desired)
		*did = action(current, desired)
		at := metav1.NewTime(r.now)
		h.Status.LastScaleTime = &at
	}
	r.recordObserved(current)
	h.Status.DesiredReplicas = desired
	r.metrics.desired.WithLabelValues(h.Namespace, h.Name).Set(float64(desired))
	return r.partial
}

// recordObserved sets the current size and the values of the metrics in the status. It is also called after an error,
// with the values that are known.
func (r *evaluation) recordObserved(current int32) {
	h := r.hpa
	h.Status.ObservedGeneration = &h.Generation
	h.Status.CurrentReplicas, h.Status.CurrentMetrics = current, r.statuses
}

// hasOutsideMetric reports whether the autoscaler has an Object or External metric. Only such a metric has a value
// while the target has no pods, so that a target can be scaled up from zero.
func hasOutsideMetric(h *autoscalingv2.HorizontalPodAutoscaler) bool {
	return slices.ContainsFunc(h.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	})
}

// scaledToZero reports whether this controller scaled the target to zero. A target that another
// client scaled to zero is not scaled up.
func scaledToZero(h *autoscalingv2.HorizontalPodAutoscaler) bool {
	return slices.ContainsFunc(h.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.ScaledToZero && c.Status == corev1.ConditionTrue
	})
}

// resize sets the size of the target to n. It retries if the target was updated concurrently, but returns the conflict
// if its size was changed, because the next evaluation has to start from the new size.
func (r *evaluation) resize(ctx context.Context, target schema.GroupResource, s *autoscalingv1.Scale, n int32) error {
	scales := r.cfg.Scales.Scales(r.hpa.Namespace)
	was := s.Spec.Replicas
	for tries := 0; ; tries++ {
		s.Spec.Replicas = n
		_, err := scales.Update(ctx, target, s, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) || tries == 3 {
			return err
		}
		now, getErr := scales.Get(ctx, target, s.Name, metav1.GetOptions{})
		if getErr != nil || now.Spec.Replicas != was {
			return err
		}
		s = now
	}
}

// normalize applies stabilization and limits to proposed, the number of replicas computed from the metrics, and sets
// the conditions AbleToScale and ScalingLimited. It returns the resulting number.
func (r *evaluation) normalize(current, proposed int32, l limits) int32 {
	var stable, bounded limitedSize
	if b := r.hpa.Spec.Behavior; b == nil {
		stable = r.history.stabilizeDefault(r.now, r.cfg.Stabilization, proposed)
		bounded = limitDefault(l, current, stable.replicas)
	} else {
		stable = r.history.stabilize(r.now, window(b.ScaleUp, 0), window(b.ScaleDown, r.cfg.Stabilization), current, proposed)
		bounded = r.history.limitByBehavior(r.now, b, l, current, stable.replicas)
	}
	r.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, stable.reason, stable.message)
	status := corev1.ConditionTrue
	if bounded.reason == withinRange {
		status = corev1.ConditionFalse
	}
	r.condition(autoscalingv2.ScalingLimited, status, bounded.reason, bounded.message)
	return bounded.replicas
}

// window returns the stabilization window in rules, or byDefault if it is not set.
func window(rules *autoscalingv2.HPAScalingRules, byDefault time.Duration) time.Duration {
	if rules == nil || rules.StabilizationWindowSeconds == nil {
		return byDefault
	}
	return time.Duration(*rules.StabilizationWindowSeconds) * time.Second
}
