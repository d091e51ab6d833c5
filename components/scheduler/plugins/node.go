package plugins

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// NodeName restricts a pod to the node in its spec.nodeName.
type NodeName struct{}

// Name returns the name of the plugin in configuration files.
func (NodeName) Name() string { return "NodeName" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (NodeName) Wakes() framework.Event { return framework.NodeAdded }

// Filter rejects all nodes but the one in the pod's spec.nodeName. It rejects no node and returns nil if that is
// empty.
func (NodeName) Filter(c *framework.Cycle) (*framework.Check, error) {
	want := c.Pod.Object.Spec.NodeName
	if want == "" {
		return nil, nil
	}
	return &framework.Check{Node: func(n *state.Node) []framework.Reason {
		if n.Name == want {
			return nil
		}
		return reason("node(s) didn't match the requested node name", true)
	}}, nil
}

// NodeUnschedulable excludes cordoned nodes.
type NodeUnschedulable struct{}

// Name returns the name of the plugin in configuration files.
func (NodeUnschedulable) Name() string { return "NodeUnschedulable" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (NodeUnschedulable) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeTaintsChanged
}

// Filter rejects nodes with spec.unschedulable set. It rejects no node and returns nil if the pod tolerates the
// corresponding taint.
func (NodeUnschedulable) Filter(c *framework.Cycle) (*framework.Check, error) {
	tolerates := tolerated(c.Pod.Object.Spec.Tolerations, &corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	})
	if tolerates {
		return nil, nil
	}
	return &framework.Check{Node: func(n *state.Node) []framework.Reason {
		if !n.Object.Spec.Unschedulable {
			return nil
		}
		return reason("node(s) were unschedulable", true)
	}}, nil
}

// NodeAffinity is the plugin for node selectors and node affinity.
// https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
type NodeAffinity struct {
	// Added applies to all pods in addition to their own affinity; nil means none.
	Added *corev1.NodeAffinity
}

// Name returns the name of the plugin in configuration files.
func (NodeAffinity) Name() string { return "NodeAffinity" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (NodeAffinity) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeLabelsChanged
}

// Filter rejects nodes that do not match the pod's node selector or required node affinity, or Added. It rejects no
// node and returns nil if the pod has neither and Added requires nothing. It rejects all nodes if the terms of the
// affinity name nodes, but none that can match.
func (p NodeAffinity) Filter(c *framework.Cycle) (*framework.Check, error) {
	spec := &c.Pod.Object.Spec
	own := spec.Affinity != nil && spec.Affinity.NodeAffinity != nil &&
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
	added := p.Added != nil && p.Added.RequiredDuringSchedulingIgnoredDuringExecution != nil
	if len(spec.NodeSelector) == 0 && !own && !added {
		return nil, nil
	}
	matches := required(c)
	everyone := nodeaffinity.NewRequiredNodeAffinity(nil, &corev1.Affinity{NodeAffinity: p.Added})
	check := &framework.Check{Node: func(n *state.Node) []framework.Reason {
		if added {
			if ok, err := everyone.Match(n.Object); !ok || err != nil {
				return reason("node(s) didn't match scheduler-enforced node affinity", true)
			}
		}
		if matches(n) {
			return nil
		}
		return reason("node(s) didn't match Pod's node affinity/selector", true)
	}}
	if own {
		check.Only = namedNodes(spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms)
		if check.Only != nil && len(check.Only) == 0 {
			return &framework.Check{Refused: "pod affinity terms conflict"}, nil
		}
	}
	return check, nil
}

// required returns a function that reports whether a node matches the node selector and the required node affinity of
// the pod that is being scheduled. The function is called for every node, so it compares the numbers of label values
// in a Topology instead of strings.
func required(c *framework.Cycle) func(*state.Node) bool {
	spec := &c.Pod.Object.Spec
	type label struct {
		topology *state.Topology
		value    int
	}
	selector := make([]label, 0, len(spec.NodeSelector))
	for key, value := range spec.NodeSelector {
		t := c.State.Topology(key)
		number, ok := t.Number(value)
		if !ok {
			return func(*state.Node) bool { return false }
		}
		selector = append(selector, label{t, number})
	}
	var affinity *nodeaffinity.RequiredNodeAffinity
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		of := nodeaffinity.NewRequiredNodeAffinity(nil, spec.Affinity)
		affinity = &of
	}
	return func(n *state.Node) bool {
		for _, l := range selector {
			if l.topology.Of(n) != l.value {
				return false
			}
		}
		if affinity == nil {
			return true
		}
		// An invalid selector matches nothing.
		ok, err := affinity.Match(n.Object)
		return ok && err == nil
	}
}

// namedNodes returns the names of the nodes that the terms can match if every term selects nodes by metadata.name, as
// in pods of DaemonSets. Otherwise it returns nil. The scheduler then need not evaluate other nodes.
func namedNodes(terms []corev1.NodeSelectorTerm) map[string]bool {
	if len(terms) == 0 {
		return nil
	}
	all := map[string]bool{}
	for i := range terms {
		var names map[string]bool
		for _, field := range terms[i].MatchFields {
			if field.Key != metav1.ObjectNameField || field.Operator != corev1.NodeSelectorOpIn {
				continue
			}
			these := map[string]bool{}
			for _, name := range field.Values {
				if names == nil || names[name] {
					these[name] = true
				}
			}
			names = these
		}
		if names == nil {
			return nil
		}
		maps.Copy(all, names)
	}
	return all
}

// Score prefers nodes that match more of the preferred terms of the pod and of Added, by weight. It gives no scores
// and returns false if there are none.
func (p NodeAffinity) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	var all []corev1.PreferredSchedulingTerm
	if a := c.Pod.Object.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		all = append(all, a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if p.Added != nil {
		all = append(all, p.Added.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if len(all) == 0 {
		return false
	}
	terms, err := nodeaffinity.NewPreferredSchedulingTerms(all)
	if err != nil {
		return false
	}
	for i, n := range nodes {
		out[i] = terms.Score(n.Object)
	}
	framework.Normalize(out, false)
	return true
}

// reason returns a list that contains one reason why a node does not fit. unresolvable means that the pod does not fit
// even if other pods are evicted from the node.
func reason(text string, unresolvable bool) []framework.Reason {
	return []framework.Reason{{Text: text, Unresolvable: unresolvable}}
}
