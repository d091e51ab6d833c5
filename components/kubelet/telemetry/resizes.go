package telemetry

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"hyperkube/internal/pod/podutil"
)

// PriorityBucket returns the metrics label of a pod's priority.
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

// ResizesRequested counts the changes of container resources between two versions of a pod.
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
	m.resources.resizes.WithLabelValues(name, requirement, operation).Inc()
}

// Resized records a resize and its result.
func (m *Metrics) Resized(took time.Duration, ok bool) {
	if m != nil {
		label := "false"
		if ok {
			label = "true"
		}
		m.resources.resized.WithLabelValues(label).Observe(float64(took.Milliseconds()))
	}
}

// ResizeInfeasible counts an infeasible resize. detail is the label of the reason.
func (m *Metrics) ResizeInfeasible(detail string) {
	if m != nil {
		m.resources.infeasible.WithLabelValues(detail).Inc()
	}
}

// ResizeAccepted records that a resize was accepted after it was deferred. trigger is the reason
// for the retry.
func (m *Metrics) ResizeAccepted(pod *v1.Pod, trigger string, after time.Duration) {
	if m != nil {
		m.resources.accepted.WithLabelValues(trigger).Inc()
		m.resources.deferred.WithLabelValues("accepted", PriorityBucket(pod)).Observe(after.Seconds())
	}
}
