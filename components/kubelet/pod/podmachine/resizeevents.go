package podmachine

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// Started records that the resize was found to fit and begins. The decision contains an event, once for each
// generation of the pod. The caller must execute it.
func (r *Resize) Started(req *ResizeRequest) (d Decision) {
	if r.startedGeneration != req.Pod.Generation {
		r.startedGeneration = req.Pod.Generation
		d.event("", false, "ResizeStarted", resizeMessage(req.Pod, "started", req.Pod.Generation, ""))
	}
	return d
}

// stateChanged adds an event to d if now is a pending or failed state of the resize that differs from the
// current one.
func (r *Resize) stateChanged(pod *v1.Pod, now *ResizeState, d *Decision) {
	if old := r.State; old != nil && old.Kind == now.Kind && old.Reason == now.Reason && old.Generation == now.Generation {
		return
	}
	switch {
	case now.Kind == v1.PodResizePending && now.Reason == v1.PodReasonInfeasible:
		d.event("", true, "ResizeInfeasible", resizeMessage(pod, now.Reason, now.Generation, now.Message))
	case now.Kind == v1.PodResizePending:
		d.event("", true, "ResizeDeferred", resizeMessage(pod, now.Reason, now.Generation, now.Message))
	case now.Reason == v1.PodReasonError:
		d.event("", true, "ResizeError", resizeMessage(pod, "error", now.Generation, now.Message))
	}
}

// resizeMessage returns the message of a resize event in upstream's format: what, such as "started", followed by
// the requested resources, generation and problem as JSON. generation is that of the pod, and problem the error, or
// "".
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
