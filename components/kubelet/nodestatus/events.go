package nodestatus

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// note is an event of the Node.
type note struct{ kind, reason, message string }

// becomes is an event of a status that has changed.
func becomes(node, what string) note {
	return note{v1.EventTypeNormal, what, "Node " + node + " status is now: " + what}
}

// news are the events of what the status of a node tells now and did not before.
// A node that was not known is news with everything.
func news(name string, before, after *v1.NodeStatus) []note {
	var out []note
	for _, c := range []struct {
		kind     v1.NodeConditionType
		yes, no  string
		unknowns bool // a condition that was not there, or not known, is news
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
			out = append(out, becomes(name, c.yes))
		case c.unknowns || was != "":
			out = append(out, becomes(name, c.no))
		}
	}
	if old := before.NodeInfo.BootID; old != "" && old != after.NodeInfo.BootID {
		out = append(out, note{v1.EventTypeWarning, "Rebooted", "Node " + name + " has been rebooted, boot id: " + after.NodeInfo.BootID})
	}
	return out
}

func conditionOf(s *v1.NodeStatus, kind v1.NodeConditionType) v1.ConditionStatus {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return s.Conditions[i].Status
		}
	}
	return ""
}

// tell records the events of a status that the API has taken.
func (k *Keeper) tell(before, after *v1.NodeStatus) {
	for _, n := range news(k.cfg.Name, before, after) {
		k.event(n)
	}
}

// schedulable records an event when pods may be bound to the node from now on, or
// may not.
func (k *Keeper) schedulable(node *v1.Node) {
	k.mu.Lock()
	was := k.unschedulable
	k.unschedulable = node.Spec.Unschedulable
	k.mu.Unlock()
	switch {
	case was == node.Spec.Unschedulable:
	case was:
		k.event(becomes(k.cfg.Name, "NodeSchedulable"))
	default:
		k.event(becomes(k.cfg.Name, "NodeNotSchedulable"))
	}
}

// Reference names the Node as its own kubelet does in events.
func Reference(name string) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Node", Name: name, UID: types.UID(name)}
}

func (k *Keeper) event(n note) {
	if k.cfg.Events != nil {
		k.cfg.Events.Event(Reference(k.cfg.Name), n.kind, n.reason, n.message)
	}
}
