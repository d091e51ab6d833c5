package horizontalpodautoscaling

import (
	"context"
	"errors"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/internal/pod/podutil"
)

// failure is the error of one metric, with the reason of the condition that it causes.
type failure struct {
	reason string
	// why is the message of the condition; err adds which metric failed.
	why, err error
}

// Error returns the message with the name of the metric.
func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// scaleTarget is the object that an autoscaler scales: its Scale, and its pods with the selector that selects them.
type scaleTarget struct {
	scale *autoscalingv1.Scale
	// pods are the pods that the scale's selector selects.
	pods     []*corev1.Pod
	selector labels.Selector
}

// proposal is the number of replicas computed from one metric, with the metric's name for events and its status.
type proposal struct {
	replicas int32
	name     string
	status   autoscalingv2.MetricStatus
}

// compute evaluates all metrics and returns the highest number of replicas, and the name of the metric that it was
// computed from. If some metrics fail, the target may scale up, but not down: compute then returns an error if the
// other metrics do not require more replicas than now. It sets the condition ScalingActive.
func (r *evaluation) compute(ctx context.Context, s *autoscalingv1.Scale) (int32, string, error) {
	h := r.hpa
	if s.Status.Selector == "" {
		const message = "selector is required"
		r.env.Events.Event(h, corev1.EventTypeWarning, "SelectorRequired", message)
		r.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "InvalidSelector", "the HPA target's scale is missing a selector")
		return 0, "", errors.New(message)
	}
	selector, err := labels.Parse(s.Status.Selector)
	if err != nil {
		message := fmt.Sprintf("couldn't convert selector into a corresponding internal selector object: %v", err)
		r.env.Events.Event(h, corev1.EventTypeWarning, "InvalidSelector", message)
		r.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "InvalidSelector", message)
		return 0, "", errors.New(message)
	}
	pods, err := r.pods.Pods(h.Namespace).List(selector)
	if err != nil {
		return 0, "", fmt.Errorf("unable to get pods while calculating replica count: %w", err)
	}
	r.selectors.set(h.Namespace+"/"+h.Name, selector)
	if all := r.selectors.of(h.Namespace, pods); len(all) > 1 {
		message := fmt.Sprintf("pods by selector %v are controlled by more than one HPA (e.g. %v)", s.Status.Selector, all[:2])
		r.env.Events.Event(h, corev1.EventTypeWarning, "AmbiguousSelector", message)
		r.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "AmbiguousSelector", message)
		return 0, "", errors.New(message)
	}
	var best *proposal
	var first *failure
	invalid := 0
	r.statuses = nil
	for i := range h.Spec.Metrics {
		began := r.env.Clock.Now()
		p, err := r.metricProposal(ctx, &h.Spec.Metrics[i], scaleTarget{s, pods, selector})
		did, why := "none", error(nil)
		if err != nil {
			why = err
		} else {
			did = action(s.Spec.Replicas, p.replicas)
		}
		r.metrics.metric(h.Spec.Metrics[i].Type, did, r.env.Clock.Since(began), why)
		if err != nil {
			if invalid++; first == nil {
				first = err
			}
			r.statuses = append(r.statuses, autoscalingv2.MetricStatus{})
			continue
		}
		r.statuses = append(r.statuses, p.status)
		if best == nil || best.replicas == 0 || p.replicas > best.replicas {
			best = p
		}
	}
	if first != nil {
		r.partial = fmt.Errorf("invalid metrics (%v invalid out of %v), first error is: %w", invalid, len(h.Spec.Metrics), first.err)
		if best == nil || best.replicas < s.Spec.Replicas {
			r.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, first.reason, fmt.Sprintf("the HPA was unable to compute the replica count: %v", first.why))
			return 0, "", r.partial
		}
	}
	if best == nil {
		return s.Spec.Replicas, "", nil // no metrics at all
	}
	r.condition(autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound", "the HPA was able to successfully calculate a replica count from "+best.name)
	return best.replicas, best.name, nil
}

// fail emits an event about a metric that could not be evaluated, and returns its failure. why is the cause. what and
// details are a format string and its arguments that name the metric.
func (r *evaluation) fail(reason string, why error, what string, details ...any) *failure {
	r.env.Events.Event(r.hpa, corev1.EventTypeWarning, reason, why.Error())
	return &failure{reason, why, fmt.Errorf("failed to get %s: %w", fmt.Sprintf(what, details...), why)}
}

// tolerance returns the tolerance of the autoscaler, or the configured one.
func (r *evaluation) tolerance() tolerance {
	t := tolerance{r.cfg.Tolerance, r.cfg.Tolerance}
	b := r.hpa.Spec.Behavior
	if b != nil && b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
		t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
	}
	if b != nil && b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
		t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
	}
	return t
}

// metricProposal evaluates one metric of the spec: it returns the number of replicas of the scale target that the
// metric requires, or the failure.
func (r *evaluation) metricProposal(ctx context.Context, m *autoscalingv2.MetricSpec, of scaleTarget) (*proposal, *failure) {
	namespace := r.hpa.Namespace
	switch {
	case m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil:
		p, current, err := r.resourceProposal(ctx, m.Resource.Name, "", m.Resource.Target, of)
		if err != nil {
			return nil, r.fail("FailedGetResourceMetric", err, "%s resource metric value", m.Resource.Name)
		}
		p.status = autoscalingv2.MetricStatus{Type: m.Type, Resource: &autoscalingv2.ResourceMetricStatus{Name: m.Resource.Name, Current: current}}
		return p, nil
	case m.Type == autoscalingv2.ContainerResourceMetricSourceType && m.ContainerResource != nil:
		x := m.ContainerResource
		p, current, err := r.resourceProposal(ctx, x.Name, x.Container, x.Target, of)
		if err != nil {
			return nil, r.fail("FailedGetContainerResourceMetric", err, "%s container metric value", x.Container)
		}
		p.status = autoscalingv2.MetricStatus{Type: m.Type, ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: x.Name, Container: x.Container, Current: current}}
		return p, nil
	case m.Type == autoscalingv2.PodsMetricSourceType && m.Pods != nil:
		samples, err := r.cfg.Metrics.Pods(ctx, m.Pods.Metric, namespace, of.selector)
		average, n := int64(-1), int32(0)
		if err != nil {
			err = fmt.Errorf("unable to get metric %s: %w", m.Pods.Metric.Name, err)
		} else {
			n, err = r.replicasFor(of.scale.Spec.Replicas, of.pods, samples, "", r.tolerance(), usage(milli(m.Pods.Target.AverageValue), &average))
		}
		if err != nil {
			return nil, r.fail("FailedGetPodsMetric", err, "pods metric value")
		}
		return &proposal{n, "pods metric " + m.Pods.Metric.Name, autoscalingv2.MetricStatus{Type: m.Type, Pods: &autoscalingv2.PodsMetricStatus{
			Metric: m.Pods.Metric, Current: autoscalingv2.MetricValueStatus{AverageValue: quantity(average)},
		}}}, nil
	case m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil:
		x := m.Object
		value, err := r.cfg.Metrics.Object(ctx, x.Metric, namespace, x.DescribedObject)
		if err != nil {
			what := "object metric value"
			if perPodTarget(x.Target) {
				what += fmt.Sprintf(": failed to get %s object metric", x.Metric.Name)
			}
			return nil, r.fail("FailedGetObjectMetric", fmt.Errorf("unable to get metric %s on %s %s/%s: %w", x.Metric.Name, x.DescribedObject.Kind, namespace, x.DescribedObject.Name, err), "%s", what)
		}
		n, current, err := r.fromTotal(value, x.Target, of)
		if err != nil {
			return nil, r.fail("FailedGetObjectMetric", err, "object metric value")
		}
		name := fmt.Sprintf("%s metric %s", x.DescribedObject.Kind, x.Metric.Name)
		if perPodTarget(x.Target) {
			name = fmt.Sprintf("external metric %s(%+v)", x.Metric.Name, x.Metric.Selector)
		}
		return &proposal{n, name, autoscalingv2.MetricStatus{Type: m.Type, Object: &autoscalingv2.ObjectMetricStatus{
			DescribedObject: x.DescribedObject, Metric: x.Metric, Current: current,
		}}}, nil
	case m.Type == autoscalingv2.ExternalMetricSourceType && m.External != nil:
		x := m.External
		value, err := r.cfg.Metrics.External(ctx, x.Metric, namespace)
		if err != nil {
			what := fmt.Sprintf("external metric %s", x.Metric.Name)
			if perPodTarget(x.Target) {
				what = fmt.Sprintf("%s external metric", x.Metric.Name)
			}
			return nil, r.fail("FailedGetExternalMetric", fmt.Errorf("unable to get external metric %s/%s/%+v: %w", namespace, x.Metric.Name, x.Metric.Selector, err),
				"%s external metric value: failed to get %s", x.Metric.Name, what)
		}
		n, current, err := r.fromTotal(value, x.Target, of)
		if err != nil {
			return nil, r.fail("FailedGetExternalMetric", err, "%s external metric value: failed to get external metric %s", x.Metric.Name, x.Metric.Name)
		}
		return &proposal{n, fmt.Sprintf("external metric %s(%+v)", x.Metric.Name, x.Metric.Selector), autoscalingv2.MetricStatus{Type: m.Type, External: &autoscalingv2.ExternalMetricStatus{
			Metric: x.Metric, Current: current,
		}}}, nil
	}
	err := specError{fmt.Errorf("unknown metric source type %q", string(m.Type))}
	return nil, &failure{"InvalidMetricSourceType", err, err}
}

// resourceProposal evaluates a resource metric. container is the name of the container whose usage counts, or empty for
// all containers of each pod. It also returns the current value for the status.
func (r *evaluation) resourceProposal(ctx context.Context, name corev1.ResourceName, container string, target autoscalingv2.MetricTarget, of scaleTarget) (*proposal, autoscalingv2.MetricValueStatus, error) {
	none := autoscalingv2.MetricValueStatus{}
	what := string(name) + " resource"
	if container != "" {
		what = string(name) + " container resource"
	}
	if target.AverageValue == nil && target.AverageUtilization == nil {
		return nil, none, errors.New("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set")
	}
	samples, err := r.cfg.Metrics.Resource(ctx, name, r.hpa.Namespace, of.selector, container)
	if err != nil {
		err = fmt.Errorf("unable to get metrics for resource %s: %w", name, err)
	}
	average := int64(-1)
	if target.AverageValue != nil {
		n := int32(0)
		if err == nil {
			n, err = r.replicasFor(of.scale.Spec.Replicas, of.pods, samples, name, r.tolerance(), usage(target.AverageValue.MilliValue(), &average))
		}
		if err != nil {
			return nil, none, fmt.Errorf("failed to get %s usage: %w", name, err)
		}
		return &proposal{replicas: n, name: string(name) + " resource"}, autoscalingv2.MetricValueStatus{AverageValue: amount(name, average)}, nil
	}
	var percent, n int32
	if err == nil {
		requests := func() (map[string]int64, error) { return requestsOf(of.pods, container, name) }
		n, err = r.replicasFor(of.scale.Spec.Replicas, of.pods, samples, name, r.tolerance(), utilization(*target.AverageUtilization, requests, &percent, &average))
	}
	if err != nil {
		return nil, none, fmt.Errorf("failed to get %s utilization: %w", name, err)
	}
	return &proposal{replicas: n, name: what + " utilization (percentage of request)"},
		autoscalingv2.MetricValueStatus{AverageUtilization: &percent, AverageValue: amount(name, average)}, nil
}

// fromTotal computes the number of replicas from value, a metric with one value for the entire target. It also returns
// the current value for the status. It returns an error if the target has no pods and value is not an average per pod.
func (r *evaluation) fromTotal(value int64, target autoscalingv2.MetricTarget, of scaleTarget) (int32, autoscalingv2.MetricValueStatus, error) {
	if perPodTarget(target) {
		n := perPod(value, milli(target.AverageValue), of.scale.Status.Replicas, r.tolerance())
		each := value
		if of.scale.Status.Replicas > 0 {
			each = (value + int64(of.scale.Status.Replicas) - 1) / int64(of.scale.Status.Replicas)
		}
		return n, autoscalingv2.MetricValueStatus{AverageValue: quantity(each)}, nil
	}
	ready := 0
	for _, p := range of.pods {
		if p.Status.Phase == corev1.PodRunning && podutil.Ready(p) {
			ready++
		}
	}
	ratio, tolerance := float64(value)/float64(milli(target.Value)), r.tolerance()
	if len(of.pods) == 0 && of.scale.Spec.Replicas != 0 && !tolerance.covers(ratio) {
		return 0, autoscalingv2.MetricValueStatus{}, errors.New("unable to calculate ready pods: no pods returned by selector while calculating replica count")
	}
	return byRatio(of.scale.Spec.Replicas, ratio, ready, tolerance), autoscalingv2.MetricValueStatus{Value: quantity(value)}, nil
}

// milli returns a target value in thousandths. It is at least 1, because it is used as a divisor.
func milli(q *resource.Quantity) int64 {
	if q == nil {
		return 1
	}
	return max(q.MilliValue(), 1)
}

// perPodTarget reports whether a target is an average value per pod.
func perPodTarget(t autoscalingv2.MetricTarget) bool {
	return t.Type == autoscalingv2.AverageValueMetricType && t.AverageValue != nil
}

// amount converts a resource usage in thousandths to a quantity, in the format that is usual for the resource.
func amount(name corev1.ResourceName, milli int64) *resource.Quantity {
	if name == corev1.ResourceMemory {
		return resource.NewMilliQuantity(milli, resource.BinarySI)
	}
	return quantity(milli)
}

// quantity converts a value in thousandths to a quantity.
func quantity(milli int64) *resource.Quantity {
	return resource.NewMilliQuantity(milli, resource.DecimalSI)
}
