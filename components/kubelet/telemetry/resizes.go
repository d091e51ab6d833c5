package telemetry

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"hyperkube/internal/podfacts"
)

// PriorityBucket is how a pod's priority is told of resizes.
func PriorityBucket(pod *v1.Pod) string {
	switch p := podfacts.Priority(pod); {
	case p >= podfacts.SystemCritical:
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

// ResizesAsked counts in what the resources of a pod's containers differ from those
// before.
func (m *Metrics) ResizesAsked(before, now *v1.Pod) {
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

// Resized notes that a pod has been resized, or could not be.
func (m *Metrics) Resized(took time.Duration, ok bool) {
	if m != nil {
		label := "false"
		if ok {
			label = "true"
		}
		m.resources.resized.WithLabelValues(label).Observe(float64(took.Milliseconds()))
	}
}

// ResizeInfeasible counts a resize that cannot be; detail is why in one word.
func (m *Metrics) ResizeInfeasible(detail string) {
	if m != nil {
		m.resources.infeasible.WithLabelValues(detail).Inc()
	}
}

// ResizeAccepted counts a resize that was deferred for so long and fits now;
// trigger is what made it be tried again.
func (m *Metrics) ResizeAccepted(pod *v1.Pod, trigger string, after time.Duration) {
	if m != nil {
		m.resources.accepted.WithLabelValues(trigger).Inc()
		m.resources.deferred.WithLabelValues("accepted", PriorityBucket(pod)).Observe(after.Seconds())
	}
}
