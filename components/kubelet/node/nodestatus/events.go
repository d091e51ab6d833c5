package nodestatus

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nodeEvent is an event about the Node. kind is Normal or Warning.
type nodeEvent struct{ kind, reason, message string }

// statusEvent returns the event that the status of the node is now what, for example NodeReady.
func statusEvent(node, what string) nodeEvent {
	return nodeEvent{v1.EventTypeNormal, what, "Node " + node + " status is now: " + what}
}

// changeEvents returns the events about the changes of conditions from the status before to after, and about
// a reboot of the node. For a new node, before is empty and every pressure condition is a change.
func changeEvents(name string, before, after *v1.NodeStatus) []nodeEvent {
	var out []nodeEvent
	for _, c := range []struct {
		kind     v1.NodeConditionType
		yes, no  string
		unknowns bool // a condition that was missing or unknown counts as changed
	}{
		{v1.NodeMemoryPressure, "NodeHasInsufficientMemory", "NodeHasSufficientMemory", true},
		{v1.NodeDiskPressure, "NodeHasDiskPressure", "NodeHasNoDiskPressure", true},
		{v1.NodePIDPressure, "NodeHasInsufficientPID", "NodeHasSufficientPID", true},
		{v1.NodeReady, "NodeReady", "NodeNotReady", false},
	} {
		was, is := conditionOf(before, c.kind), conditionOf(after, c.kind)
		switch {
		case is == was || is == "":
		case is == v1.ConditionTrue:
			out = append(out, statusEvent(name, c.yes))
		case c.unknowns || was != "":
			out = append(out, statusEvent(name, c.no))
		}
	}
	if old := before.NodeInfo.BootID; old != "" && old != after.NodeInfo.BootID {
		out = append(out, nodeEvent{v1.EventTypeWarning, "Rebooted", "Node " + name + " has been rebooted, boot id: " + after.NodeInfo.BootID})
	}
	return out
}

// conditionOf returns the status of a condition, or "" if s does not have it.
func conditionOf(s *v1.NodeStatus, kind v1.NodeConditionType) v1.ConditionStatus {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return s.Conditions[i].Status
		}
	}
	return ""
}

// emitEvents emits the events about the changes of a status that the API server has accepted.
func (k *Manager) emitEvents(before, after *v1.NodeStatus) {
	for _, n := range changeEvents(k.cfg.Name, before, after) {
		k.event(n)
	}
}

// emitSchedulable emits an event if spec.unschedulable of the Node has changed since the last call.
func (k *Manager) emitSchedulable(node *v1.Node) {
	k.mu.Lock()
	was := k.unschedulable
	k.unschedulable = node.Spec.Unschedulable
	k.mu.Unlock()
	switch {
	case was == node.Spec.Unschedulable:
	case was:
		k.event(statusEvent(k.cfg.Name, "NodeSchedulable"))
	default:
		k.event(statusEvent(k.cfg.Name, "NodeNotSchedulable"))
	}
}

// Reference returns the reference to the Node of that name for events. Its UID is the name, as in upstream's
// kubelet.
func Reference(name string) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Node", Name: name, UID: types.UID(name)}
}

// event emits the event, unless no recorder is configured.
func (k *Manager) event(n nodeEvent) {
	if k.cfg.Events != nil {
		k.cfg.Events.Event(Reference(k.cfg.Name), n.kind, n.reason, n.message)
	}
}
