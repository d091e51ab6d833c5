package scheduler

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/pod/podutil"
)

// processInbox processes all messages that other goroutines have sent: it updates the state and the queue. Then it
// moves unschedulable pods that the changes may have made schedulable to the active or back-off queue.
func (s *Scheduler) processInbox() {
	now := time.Now()
	var happened framework.Event
	for _, m := range s.inbox.take() {
		switch {
		case m.failed != nil:
			happened |= s.bindingFailed(m.failed, now)
		case m.claim != "":
			s.queue.claimChanged(m.claim, now)
		case m.event != 0:
			happened |= m.event
		case m.devices != nil:
			happened |= s.devicesChanged(m.devices, now)
		case m.evicted != nil:
			s.evictionDone(m.evicted, m.err, now)
		case m.node != nil && m.gone:
			s.state.RemoveNode(m.node.Name)
			happened |= framework.NodeRemoved
		case m.node != nil:
			happened |= nodeEvent(s.state.Node(m.node.Name), m.node)
			s.state.SetNode(m.node)
		case m.pod != nil:
			happened |= s.podChanged(m.pod, m.gone, now)
		}
	}
	s.queue.onEvent(happened, now)
}

// bindingFailed removes an assumed pod from its node because a writer could not bind the pod, and queues the pod again
// after its back-off. It returns the event after which other unschedulable pods may fit, because the resources of the
// pod are available again.
func (s *Scheduler) bindingFailed(it *item, now time.Time) framework.Event {
	uid := it.pod.UID
	// The pod may have been bound or deleted before.
	if !s.assumed[uid] {
		return 0
	}
	delete(s.assumed, uid)
	s.state.RemovePod(uid)
	s.queue.addBackoff(it, now)
	return framework.PodRemoved
}

// evictionDone handles the message that the preemption victims of a pod were evicted, or could not be if err is not
// nil. In the latter case the pod loses its nomination and is tried again.
func (s *Scheduler) evictionDone(pod *corev1.Pod, err error, now time.Time) {
	if err != nil {
		s.state.ClearNomination(pod.UID)
	}
	s.queue.evictionDone(pod.UID, err != nil, now)
}

// podChanged updates the state and the queue with a pod from the informer, which was deleted if gone is true. It
// returns the event after which unschedulable pods may fit because of this change, or 0 if there is none.
func (s *Scheduler) podChanged(pod *corev1.Pod, gone bool, now time.Time) framework.Event {
	uid := pod.UID
	switch {
	case gone || podutil.Terminal(pod):
		delete(s.assumed, uid)
		return s.forgetUnscheduled(uid) | s.removeFromNode(uid)
	case pod.Spec.NodeName != "":
		// No event: the pod is now on the node it was nominated to.
		s.state.ClearNomination(uid)
		s.queue.remove(uid)
		e := framework.PodAdded
		info := state.NewPod(pod)
		if old := s.state.Pod(uid); old != nil && !s.assumed[uid] {
			e = podEvent(old, info)
		}
		delete(s.assumed, uid)
		s.state.SetPod(info, pod.Spec.NodeName)
		return e
	case pod.DeletionTimestamp != nil:
		// A binding that is being written will fail.
		delete(s.assumed, uid)
		return s.forgetUnscheduled(uid) | s.removeFromNode(uid)
	}
	if s.profiles[pod.Spec.SchedulerName] == nil {
		return 0
	}
	old := s.queue.items[uid]
	was := ""
	if old != nil {
		was = old.pod.Status.NominatedNodeName
	}
	gate := s.gate(pod)
	s.queue.set(pod, gate != "", now)
	s.queue.gatedBy(uid, gate)
	// Keep a nomination that was written but is not in the cache yet.
	if is := pod.Status.NominatedNodeName; is != was && !s.assumed[uid] {
		s.state.ClearNomination(uid)
		if is != "" {
			s.state.Nominate(state.NewPod(pod), is)
		} else {
			return framework.PodRemoved
		}
	}
	return 0
}

// forgetUnscheduled removes a deleted or terminating pod without a node from the queue. If the pod was nominated to a
// node, it returns PodRemoved, because the resources that were reserved there are available again.
func (s *Scheduler) forgetUnscheduled(uid types.UID) framework.Event {
	s.queue.remove(uid)
	if s.state.NominatedNode(uid) == nil {
		return 0
	}
	s.state.ClearNomination(uid)
	return framework.PodRemoved
}

// removeFromNode removes a pod from its node in the state. It returns PodRemoved, or 0 if the pod was on no node.
func (s *Scheduler) removeFromNode(uid types.UID) framework.Event {
	if s.state.Pod(uid) == nil {
		return 0
	}
	s.state.RemovePod(uid)
	return framework.PodRemoved
}

// podEvent returns the events after which unschedulable pods may fit because an assigned pod has changed from old to
// now: its labels have changed, its termination has started, or its requests have decreased. Otherwise it returns 0.
func podEvent(old, now *state.Pod) framework.Event {
	var e framework.Event
	if !maps.Equal(old.Object.Labels, now.Object.Labels) || old.Object.DeletionTimestamp == nil && now.Object.DeletionTimestamp != nil {
		e |= framework.PodLabelsChanged
	}
	if !now.Requests.Covers(old.Requests) {
		e |= framework.PodScaledDown
	}
	return e
}

// nodeEvent returns the events after which unschedulable pods may fit because a node has changed from old to now, or 0
// if the change cannot help them. old is nil for a new node.
func nodeEvent(old *state.Node, now *corev1.Node) framework.Event {
	if old == nil {
		return framework.NodeAdded
	}
	var e framework.Event
	if !resourcesEqual(old.Object.Status.Allocatable, now.Status.Allocatable) {
		e |= framework.NodeAllocatableChanged
	}
	if !maps.Equal(old.Object.Labels, now.Labels) {
		e |= framework.NodeLabelsChanged
	}
	if old.Object.Spec.Unschedulable != now.Spec.Unschedulable || !taintsEqual(old.Object.Spec.Taints, now.Spec.Taints) {
		e |= framework.NodeTaintsChanged
	}
	if !slices.Equal(old.Object.Status.DeclaredFeatures, now.Status.DeclaredFeatures) {
		e |= framework.NodeFeaturesChanged
	}
	return e
}
