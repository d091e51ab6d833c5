package scheduler

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/podfacts"
)

// takeIn applies what informers and writers told, and wakes those whom that may
// help.
func (s *Scheduler) takeIn() {
	now := time.Now()
	var happened framework.Event
	for _, m := range s.inbox.take() {
		switch {
		case m.failed != nil:
			happened |= s.takeFailure(m.failed, now)
		case m.claim != "":
			s.queue.claimChanged(m.claim, now)
		case m.event != 0:
			happened |= m.event
		case m.devices != nil:
			happened |= s.takeDevices(m.devices, now)
		case m.evicted != nil:
			s.takeEvicted(m.evicted, m.err, now)
		case m.node != nil && m.gone:
			s.state.RemoveNode(m.node.Name)
			happened |= framework.NodeRemoved
		case m.node != nil:
			happened |= nodeEvent(s.state.Node(m.node.Name), m.node)
			s.state.SetNode(m.node)
		case m.pod != nil:
			happened |= s.takePod(m.pod, m.gone, now)
		}
	}
	s.queue.happened(happened, now)
}

// takeFailure takes back the placement of a pod whose binding failed.
func (s *Scheduler) takeFailure(it *item, now time.Time) framework.Event {
	uid := it.pod.UID
	// The pod may have been bound or gone meanwhile.
	if !s.assumed[uid] {
		return 0
	}
	delete(s.assumed, uid)
	s.state.RemovePod(uid)
	s.queue.again(it, now)
	return framework.PodRemoved
}

// takeEvicted lets a pod go on that others were evicted for, or not.
func (s *Scheduler) takeEvicted(pod *corev1.Pod, err error, now time.Time) {
	if err != nil {
		s.state.Withdraw(pod.UID)
	}
	s.queue.release(pod.UID, err != nil, now)
}

func (s *Scheduler) takePod(pod *corev1.Pod, gone bool, now time.Time) framework.Event {
	uid := pod.UID
	switch {
	case gone || podfacts.Terminal(pod):
		delete(s.assumed, uid)
		return s.forget(uid) | s.leave(uid)
	case pod.Spec.NodeName != "":
		// Withdrawn in silence: the pod is now where room was made for it.
		s.state.Withdraw(uid)
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
		// Its binding, should that be under way, is refused.
		delete(s.assumed, uid)
		return s.forget(uid) | s.leave(uid)
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
	// What was nominated here and has not come back yet stays.
	if is := pod.Status.NominatedNodeName; is != was && !s.assumed[uid] {
		s.state.Withdraw(uid)
		if is != "" {
			s.state.Nominate(state.NewPod(pod), is)
		} else {
			return framework.PodRemoved
		}
	}
	return 0
}

// forget takes a pod without a node out of the queue. Its going makes room if
// some was being made for it.
func (s *Scheduler) forget(uid types.UID) framework.Event {
	s.queue.remove(uid)
	if s.state.NominatedNode(uid) == nil {
		return 0
	}
	s.state.Withdraw(uid)
	return framework.PodRemoved
}

// leave takes a pod off its node.
func (s *Scheduler) leave(uid types.UID) framework.Event {
	if s.state.Pod(uid) == nil {
		return 0
	}
	s.state.RemovePod(uid)
	return framework.PodRemoved
}

// podEvent tells what changed of a pod on a node that matters to waiting pods.
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

// nodeEvent tells what changed of a node that matters to waiting pods.
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
