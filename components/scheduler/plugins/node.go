package plugins

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// NodeName keeps a pod to the node that it names.
type NodeName struct{}

// Name of the plugin.
func (NodeName) Name() string { return "NodeName" }

// Wakes as framework.Waker.
func (NodeName) Wakes() framework.Event { return framework.NodeAdded }

// Filter as framework.Filter.
func (NodeName) Filter(c *framework.Cycle) (framework.Check, error) {
	want := c.Pod.Object.Spec.NodeName
	if want == "" {
		return nil, nil
	}
	return func(n *state.Node) []framework.Reason {
		if n.Name == want {
			return nil
		}
		return reason("node(s) didn't match the requested node name", true)
	}, nil
}

// NodeUnschedulable keeps pods off cordoned nodes.
type NodeUnschedulable struct{}

// Name of the plugin.
func (NodeUnschedulable) Name() string { return "NodeUnschedulable" }

// Wakes as framework.Waker.
func (NodeUnschedulable) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeTaintsChanged
}

// Filter as framework.Filter.
func (NodeUnschedulable) Filter(c *framework.Cycle) (framework.Check, error) {
	tolerates := tolerated(c.Pod.Object.Spec.Tolerations, &corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	})
	if tolerates {
		return nil, nil
	}
	return func(n *state.Node) []framework.Reason {
		if !n.Object.Spec.Unschedulable {
			return nil
		}
		return reason("node(s) were unschedulable", true)
	}, nil
}

// NodeAffinity keeps pods to the nodes that their selectors and required
// affinity match, and prefers those of their preferred affinity.
// https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
type NodeAffinity struct{}

// Name of the plugin.
func (NodeAffinity) Name() string { return "NodeAffinity" }

// Wakes as framework.Waker.
func (NodeAffinity) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeLabelsChanged
}

// Filter as framework.Filter.
func (NodeAffinity) Filter(c *framework.Cycle) (framework.Check, error) {
	spec := &c.Pod.Object.Spec
	required := spec.Affinity != nil && spec.Affinity.NodeAffinity != nil &&
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
	if len(spec.NodeSelector) == 0 && !required {
		return nil, nil
	}
	affinity := nodeaffinity.GetRequiredNodeAffinity(c.Pod.Object)
	return func(n *state.Node) []framework.Reason {
		// An error is a selector that can match nothing.
		if ok, err := affinity.Match(n.Object); ok && err == nil {
			return nil
		}
		return reason("node(s) didn't match Pod's node affinity/selector", true)
	}, nil
}

// Score as framework.Score.
func (NodeAffinity) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	affinity := c.Pod.Object.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil ||
		len(affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		return false
	}
	terms, err := nodeaffinity.NewPreferredSchedulingTerms(affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		return false
	}
	for i, n := range nodes {
		out[i] = terms.Score(n.Object)
	}
	framework.Normalize(out, false)
	return true
}

func reason(text string, unresolvable bool) []framework.Reason {
	return []framework.Reason{{Text: text, Unresolvable: unresolvable}}
}
