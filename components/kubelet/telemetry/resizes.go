package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"hyperkube/internal/pod/podutil"
)

// PriorityBucket returns the label of the range that a pod's priority is in, such as "high".
func PriorityBucket(pod *v1.Pod) string {
	switch p := podutil.Priority(pod); {
	case p >= podutil.SystemCritical:
		return "system-critical"
	case p >= 100000:
		return "high"
	case p > 0:
		return "medium"
	case p == 0:
		return "normal"
	case p > -1000:
		return "low"
	}
	return "very-low"
}

// ResizesRequested counts the changes of container resources between two versions of a pod, each resource of
// each container separately.
func (m *Metrics) ResizesRequested(before, now *v1.Pod) {
	if m == nil {
		return
	}
	compare := func(before, now []v1.Container) {
		for i := range min(len(before), len(now)) {
			old, fresh := &before[i].Resources, &now[i].Resources
			m.resizeAsked("memory", "requests", old.Requests.Memory(), fresh.Requests.Memory())
			m.resizeAsked("memory", "limits", old.Limits.Memory(), fresh.Limits.Memory())
			m.resizeAsked("cpu", "requests", old.Requests.Cpu(), fresh.Requests.Cpu())
			m.resizeAsked("cpu", "limits", old.Limits.Cpu(), fresh.Limits.Cpu())
		}
	}
	compare(before.Spec.InitContainers, now.Spec.InitContainers)
	compare(before.Spec.Containers, now.Spec.Containers)
}

// resizeAsked counts the change of one resource of a container, unless before and now are equal. requirement
// is "requests" or "limits".
func (m *Metrics) resizeAsked(name, requirement string, before, now *resource.Quantity) {
	var operation string
	switch order := now.Cmp(*before); {
	case order == 0:
		return
	case before.IsZero():
		operation = "add"
	case now.IsZero():
		operation = "remove"
	case order > 0:
		operation = "increase"
	default:
		operation = "decrease"
	}
	m.resizes.requested.WithLabelValues(name, requirement, operation).Inc()
}

// Resized records how long the resize of a running pod took, and whether all limits were set.
func (m *Metrics) Resized(took time.Duration, ok bool) {
	if m != nil {
		label := "false"
		if ok {
			label = "true"
		}
		m.resizes.resized.WithLabelValues(label).Observe(float64(took.Milliseconds()))
	}
}

// ResizeInfeasible counts a resize that can never be executed. detail is the label of the reason.
func (m *Metrics) ResizeInfeasible(detail string) {
	if m != nil {
		m.resizes.infeasible.WithLabelValues(detail).Inc()
	}
}

// ResizeAccepted records how long a resize was deferred before it was accepted. trigger is the reason for the
// retry that has succeeded.
func (m *Metrics) ResizeAccepted(pod *v1.Pod, trigger string, after time.Duration) {
	if m != nil {
		m.resizes.accepted.WithLabelValues(trigger).Inc()
		m.resizes.deferred.WithLabelValues("accepted", PriorityBucket(pod)).Observe(after.Seconds())
	}
}

// resizeMetrics are the metrics of in-place resizes of pods.
type resizeMetrics struct {
	requested            *prometheus.CounterVec
	resized, deferred    *prometheus.HistogramVec
	infeasible, accepted *prometheus.CounterVec
}

func (m *resizeMetrics) fill(s *set) {
	m.requested = s.counters(prefix+"container_requested_resizes_total", "[ALPHA] Number of requested resizes, counted at the container level. Different resources on the same container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; the 'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.", "resource", "requirement", "operation")
	m.resized = s.histograms(prefix+"pod_resize_duration_milliseconds", "[ALPHA] Duration in milliseconds to actuate a pod resize", []float64{10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000}, "success")
	m.infeasible = s.counters(prefix+"pod_infeasible_resizes_total", "[ALPHA] Number of infeasible resizes for pods.", "reason_detail")
	m.accepted = s.counters(prefix+"pod_deferred_accepted_resizes_total", "[ALPHA] Cumulative number of resizes that were accepted after being deferred.", "retry_trigger")
	m.deferred = s.histograms(prefix+"pod_deferred_resize_duration_seconds", "[ALPHA] Duration in seconds that a pod resize was deferred, by its resolution and by the priority of the pod.", []float64{5, 10, 15, 20, 30, 45, 60, 90, 120, 150, 180, 300, 600, 1200, 1800, 3600}, "resolution", "priority_bucket")
}
