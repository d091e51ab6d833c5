package pods

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// emitResizeStarted emits an event that a resize was started, once for each generation.
func (w *worker) emitResizeStarted(pod *v1.Pod) {
	w.mu.Lock()
	recorded := w.resizeStartedGeneration == pod.Generation
	w.resizeStartedGeneration = pod.Generation
	w.mu.Unlock()
	if !recorded {
		w.host.event(pod, "", false, "ResizeStarted", resizeMessage(pod, "started", pod.Generation, ""))
	}
}

// emitResizeState emits an event if the state of a pending or failed resize has changed. The caller must
// hold mu.
func (w *worker) emitResizeState(pod *v1.Pod, now *resizeState) {
	if old := w.resize; old != nil && old.kind == now.kind && old.reason == now.reason && old.generation == now.generation {
		return
	}
	switch {
	case now.kind == v1.PodResizePending && now.reason == v1.PodReasonInfeasible:
		w.host.event(pod, "", true, "ResizeInfeasible", resizeMessage(pod, now.reason, now.generation, now.message))
	case now.kind == v1.PodResizePending:
		w.host.event(pod, "", true, "ResizeDeferred", resizeMessage(pod, now.reason, now.generation, now.message))
	case now.reason == v1.PodReasonError:
		w.host.event(pod, "", true, "ResizeError", resizeMessage(pod, "error", now.generation, now.message))
	}
}

// resizeMessage returns the message of resize events in upstream's format. It contains the
// requested resources.
func resizeMessage(pod *v1.Pod, what string, generation int64, problem string) string {
	type container struct {
		Name      string                  `json:"name"`
		Resources v1.ResourceRequirements `json:"resources,omitempty"` //nolint:modernize // as upstream: empty ones are "{}"
	}
	var summary struct {
		InitContainers []container `json:"initContainers,omitempty"`
		Containers     []container `json:"containers,omitempty"`
		Generation     int64       `json:"generation"`
		Error          string      `json:"error,omitempty"`
	}
	summary.Generation, summary.Error = generation, problem
	for i := range pod.Spec.InitContainers {
		summary.InitContainers = append(summary.InitContainers, container{pod.Spec.InitContainers[i].Name, pod.Spec.InitContainers[i].Resources})
	}
	for i := range pod.Spec.Containers {
		summary.Containers = append(summary.Containers, container{pod.Spec.Containers[i].Name, pod.Spec.Containers[i].Resources})
	}
	text, err := json.Marshal(summary)
	if err != nil {
		return "Pod resize " + what
	}
	return fmt.Sprintf("Pod resize %s: %s", what, text)
}
