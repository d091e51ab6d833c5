package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1helpers "k8s.io/component-helpers/resource"

	"hyperkube/components/kubelet/node/preemption"
	"hyperkube/components/kubelet/pod/pods"
)

// insufficientResource describes a resource of which the node has too little for a pod. Quantities are in
// millicores, bytes or pods.
type insufficientResource struct {
	preemption.Requirement
	requested, used, capacity int64
}

// insufficientResources returns the resources of which the node has too little to run pod in addition to the pods
// in others. The number of pods comes first, then the resources sorted by name. Resources of device plugins and DRA
// drivers are not included, because their managers check them.
func (a *Admitter) insufficientResources(pod *v1.Pod, others []*v1.Pod) []insufficientResource {
	var out []insufficientResource
	look := func(name v1.ResourceName, requested, used, capacity int64) {
		if lacks := used + requested - capacity; lacks > 0 {
			out = append(out, insufficientResource{preemption.Requirement{Name: name, Quantity: lacks}, requested, used, capacity})
		}
	}
	allocatable := a.cfg.Allocatable
	look(v1.ResourcePods, 1, int64(len(others)), allocatable.Pods().Value())
	want := corev1helpers.PodRequests(pod, corev1helpers.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(want)) {
		all := allocatable[name]
		if !fixedResource(name) {
			// Resources of device plugins and DRA drivers are checked by their own managers.
			q, has := a.nonPluginExtendedResource(name)
			if !has || providedByClaim(pod, name) {
				continue
			}
			all = q
		}
		if need := want[name]; need.IsZero() {
			continue
		}
		used := int64(0)
		for _, o := range others {
			if fixedResource(name) || !providedByClaim(o, name) {
				used += preemption.Request(o, name)
			}
		}
		look(name, preemption.Request(pod, name), used, preemption.Amount(name, all))
	}
	return out
}

// nonPluginExtendedResource returns the allocatable quantity of an extended resource that a component other
// than a device plugin has set in the Node's status. has is false if there is none.
func (a *Admitter) nonPluginExtendedResource(name v1.ResourceName) (q resource.Quantity, has bool) {
	node := a.cfg.Node.Node()
	if node == nil {
		return q, false
	}
	if of, _ := a.cfg.Resources.Capacity(); of != nil {
		if _, plugged := of[name]; plugged {
			return q, false
		}
	}
	q, has = node.Status.Allocatable[name]
	return q, has
}

// providedByClaim reports whether a ResourceClaim provides the extended resource to the pod (DRA), so that
// the node need not have it.
func providedByClaim(pod *v1.Pod, name v1.ResourceName) bool {
	s := pod.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m v1.ContainerExtendedResourceRequest) bool { return m.ResourceName == string(name) })
}

// preemptionFailedPrefix is the beginning of the message, with upstream's text, for a critical pod for which
// preemption fails.
const preemptionFailedPrefix = "Unexpected error while attempting to recover from admission failure: "

// PreemptForResize preempts pods so that the deferred resize of a critical pod fits, and waits until they have
// terminated. made is true if resources were freed. Otherwise why is the message of the pod's resize condition:
// message, which says what the resize lacks, or why the preemption has failed. It preempts nothing for other
// pods, or if only deferred resizes of pods with higher precedence prevent the resize. It implements
// pods.Admitter.
func (a *Admitter) PreemptForResize(ctx context.Context, pod *v1.Pod, message string) (made bool, why string) {
	if !pods.IsCritical(pod) {
		return false, message
	}
	others := a.cfg.Pods.OtherPods(pod.UID)
	missing := a.insufficientResources(pod, others)
	if len(missing) == 0 {
		return false, message // other pods with higher precedence use the freed resources
	}
	if err := a.preempt(ctx, pod, others, missing); err != nil {
		return false, preemptionFailedPrefix + err.Error()
	}
	if ctx.Err() != nil {
		return false, message
	}
	return true, ""
}

// preemptTimeout is how long the kubelet waits for the termination of preemption victims, in addition to
// their termination grace period.
const preemptTimeout = 10 * time.Second

// preempt terminates pods of others to free the missing resources for the critical pod, and waits until they
// have terminated, their grace period plus preemptTimeout has passed, or ctx is done. It returns an error if
// no pods can be preempted.
func (a *Admitter) preempt(ctx context.Context, pod *v1.Pod, others []*v1.Pod, missing []insufficientResource) error {
	var need []preemption.Requirement
	for _, m := range missing {
		need = append(need, m.Requirement)
	}
	victims, err := preemption.Choose(pod, others, need, pods.IsCritical, pods.QOS)
	if err != nil {
		return fmt.Errorf("preemption: error finding a set of pods to preempt: %w", err)
	}
	for _, v := range victims {
		a.cfg.Log.Info("terminating pod to free resources for a critical pod (preemption)", "pod", v.Namespace+"/"+v.Name, "preemptor", pod.Namespace+"/"+pod.Name)
		a.cfg.Events.Event(v, v1.EventTypeWarning, preemption.Reason, preemption.Message)
		a.cfg.Preempted(string(need[0].Name))
		a.cfg.Pods.Terminate(v.UID, &pods.Verdict{Reason: preemption.Reason, Message: preemption.Message, Discard: true, Conditions: []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet,
			Message: "Pod was preempted by Kubelet to accommodate a critical pod.",
		}}})
	}
	for _, v := range victims {
		wait := preemptTimeout
		if grace := v.Spec.TerminationGracePeriodSeconds; grace != nil {
			wait += time.Duration(*grace) * time.Second
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-a.cfg.Pods.Cleaned(v.UID):
		case <-timer.C:
			a.cfg.Log.Warn("pod that was preempted did not terminate within its grace period; its termination continues, and the critical pod starts although resources may be short", "pod", v.Namespace+"/"+v.Name, "preemptor", pod.Namespace+"/"+pod.Name)
		}
		timer.Stop()
	}
	return nil
}

// fixedResource reports whether a resource is CPU, memory, ephemeral storage or huge pages, whose capacity
// the machine determines.
func fixedResource(name v1.ResourceName) bool {
	switch name {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return true
	}
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}
