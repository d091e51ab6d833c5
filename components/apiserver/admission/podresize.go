package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Causes in the error of a rejected resize, by which autoscalers recognize that they should not retry.
const (
	causeNodeCapacity metav1.CauseType = "NodeCapacity"
	causePlatform     metav1.CauseType = "UnsupportedPlatform"
)

// withCause adds a cause to the Status of err and returns err. It changes nothing if err has no Status with details.
func withCause(cause metav1.CauseType, err error) error {
	var status *apierrors.StatusError
	if errors.As(err, &status) && status.ErrStatus.Details != nil {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	}
	return err
}

// podResize is the plugin PodResizeValidator. It rejects resizing a pod beyond the capacity of its
// node.
//
// https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/
type podResize struct{ byNode }

// newPodResize creates the plugin podResize. It never fails.
func newPodResize(cfg *Config) (admission.Interface, error) {
	return podResize{newByNode(cfg)}, nil
}

// Validate rejects a resize if the pod's CPU or memory requests exceed what its node can allocate, or the node does
// not run Linux. Pods that are not assigned to a node are not checked.
func (p podResize) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, _ := changedOnNode(a, "resize")
	if pod == nil {
		return nil
	}
	node, err := p.nodeOf(ctx, a, pod)
	if err != nil {
		return err
	}
	asks, has := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}), node.Status.Allocatable
	var more []string
	if q, n := asks.Cpu().MilliValue(), has.Cpu().MilliValue(); q > n {
		more = append(more, fmt.Sprintf("cpu, requested: %d, allocatable: %d", q, n))
	}
	if q, n := asks.Memory().Value(), has.Memory().Value(); q > n {
		more = append(more, fmt.Sprintf("memory, requested: %d, allocatable: %d", q, n))
	}
	if len(more) > 0 {
		return withCause(causeNodeCapacity, forbid(a, "node didn't have enough allocatable resources: %s", strings.Join(more, "; ")))
	}
	if os := node.Labels[corev1.LabelOSStable]; os != "linux" {
		return withCause(causePlatform, forbid(a, "pod resize is only supported on linux nodes, node %q is %q", node.Name, os))
	}
	return nil
}
