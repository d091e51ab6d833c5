package shutdown

import (
	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/pod/pods"
)

// Pods terminates pods of the node. Its methods must be safe for concurrent use.
type Pods interface {
	// Terminate terminates a pod.
	Terminate(uid types.UID, v *pods.Verdict)
	// Cleaned returns a channel that is closed when no process of a pod runs and its volumes are removed.
	Cleaned(uid types.UID) <-chan struct{}
	// Emptied returns a channel that is closed when its containers are removed.
	Emptied(uid types.UID) <-chan struct{}
}

// Suspender returns the function for Config.Suspend that suspends pods of list.
func Suspender(list Pods) func(pod *v1.Pod, grace int64) <-chan struct{} {
	return func(pod *v1.Pod, grace int64) <-chan struct{} {
		list.Terminate(pod.UID, &pods.Verdict{Reason: Reason, Message: Message, Grace: &grace, Suspend: true})
		if pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure && !pods.IsStatic(pod) {
			// Its containers are removed, see podmachine.Verdict.
			return list.Emptied(pod.UID)
		}
		return list.Cleaned(pod.UID)
	}
}

// Terminator returns the function for Config.Terminate. It terminates pods of list with the reason Terminated
// and the condition DisruptionTarget.
func Terminator(list Pods) func(pod *v1.Pod, grace int64) <-chan struct{} {
	return func(pod *v1.Pod, grace int64) <-chan struct{} {
		list.Terminate(pod.UID, &pods.Verdict{
			Reason: Reason, Message: Message, Grace: &grace,
			Conditions: []v1.PodCondition{{
				Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: Message,
			}},
		})
		return list.Cleaned(pod.UID)
	}
}
