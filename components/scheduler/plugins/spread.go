package plugins

import (
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// PodTopologySpread spreads pods over zones, nodes, or the values of any other node label.
// https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/
type PodTopologySpread struct {
	// Defaults are the constraints of pods without constraints. They have no selectors; the
	// selector is that of the pod's services and owners. If nil, upstream's system defaults are
	// used, which prefer spreading over nodes and zones.
	Defaults []corev1.TopologySpreadConstraint
}

// Name returns the name of the plugin in configuration files.
func (PodTopologySpread) Name() string { return "PodTopologySpread" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (PodTopologySpread) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeRemoved | framework.NodeLabelsChanged | framework.NodeTaintsChanged |
		framework.PodRemoved | framework.PodAdded | framework.PodLabelsChanged
}

// systemDefaults are upstream's default constraints.
var systemDefaults = []corev1.TopologySpreadConstraint{
	{TopologyKey: corev1.LabelHostname, MaxSkew: 3, WhenUnsatisfiable: corev1.ScheduleAnyway},
	{TopologyKey: corev1.LabelTopologyZone, MaxSkew: 5, WhenUnsatisfiable: corev1.ScheduleAnyway},
}

// constraint is a parsed topology spread constraint with the number of matching pods in each domain. A domain is the
// set of nodes with the same value of the node label key.
type constraint struct {
	key                       string
	maxSkew, minDomains       int64
	selector                  labels.Selector
	self                      int64 // 1 if the pod matches the selector
	honorAffinity, honorTaint bool

	topology *state.Topology
	// counts are the matching pods by domain number; -1 for domains without eligible nodes.
	counts []int64
	// out contains the nodes that have the label but are not eligible.
	out     map[*state.Node]bool
	domains int64 // number of domains with eligible nodes
	least   int64 // minimum of counts
}

// constraints returns those of the pod's constraints whose whenUnsatisfiable is when. For a pod without constraints, it
// returns the default ones, or none if no Service or workload selects the pod. lax is true for the system defaults,
// which also apply to nodes without all topology labels. It returns an error if a constraint is invalid.
func (p PodTopologySpread) constraints(c *framework.Cycle, when corev1.UnsatisfiableConstraintAction) (out []*constraint, lax bool, err error) {
	pod := c.Pod.Object
	list := pod.Spec.TopologySpreadConstraints
	var selected labels.Selector
	if len(list) == 0 {
		list, lax = p.Defaults, p.Defaults == nil
		if lax {
			list = systemDefaults
		}
		if !slices.ContainsFunc(list, func(c corev1.TopologySpreadConstraint) bool { return c.WhenUnsatisfiable == when }) || c.SpreadSelector == nil {
			return nil, false, nil
		}
		if selected = c.SpreadSelector(pod); selected.Empty() {
			return nil, false, nil
		}
	}
	for i := range list {
		if list[i].WhenUnsatisfiable != when {
			continue
		}
		k, err := newConstraint(pod, &list[i], selected)
		if err != nil {
			return nil, false, fmt.Errorf("topology spread constraint %d: %w", i, err)
		}
		out = append(out, k)
	}
	return out, lax, nil
}

// newConstraint parses a constraint of a pod. selector is the selector of a default constraint; if it is nil, the
// constraint's own label selector is used.
func newConstraint(pod *corev1.Pod, c *corev1.TopologySpreadConstraint, selector labels.Selector) (*constraint, error) {
	if selector == nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(c.LabelSelector); err != nil {
			return nil, err
		}
		for _, key := range c.MatchLabelKeys {
			if value, ok := pod.Labels[key]; ok {
				requirement, err := labels.NewRequirement(key, selection.In, []string{value})
				if err != nil {
					return nil, err
				}
				selector = selector.Add(*requirement)
			}
		}
	}
	n := &constraint{
		key: c.TopologyKey, maxSkew: int64(c.MaxSkew), minDomains: 1, selector: selector,
		honorAffinity: c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor,
		honorTaint:    c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
	}
	if c.MinDomains != nil {
		n.minDomains = int64(*c.MinDomains)
	}
	if selector.Matches(labels.Set(pod.Labels)) {
		n.self = 1
	}
	return n, nil
}

// counted reports whether the constraint counts pods with these properties: they match the selector, are in the
// namespace own of the pod to schedule, and are not terminating.
func (k *constraint) counted(namespace string, own string, l labels.Set, terminating bool) bool {
	return namespace == own && !terminating && !k.selector.Empty() && k.selector.Matches(l)
}

// count counts the matching pods in each domain of the constraints. Only domains that contain one of nodes are counted,
// and only pods on eligible nodes: those with the labels of all constraints, unless lax is set, that the pod's node
// affinity and the taints do not exclude, if the constraint honors these.
func count(c *framework.Cycle, all []*constraint, nodes []*state.Node, lax bool) {
	pod := c.Pod.Object
	matches := required(c)
	selects := len(pod.Spec.NodeSelector) > 0 || pod.Spec.Affinity != nil && pod.Spec.Affinity.NodeAffinity != nil
	for _, k := range all {
		k.topology = c.State.Topology(k.key)
		k.counts = make([]int64, k.topology.Len())
		for i := range k.counts {
			k.counts[i] = -1
		}
	}
	takes := func(n *state.Node, k *constraint) bool {
		if k.topology.Of(n) < 0 {
			return false
		}
		if k.honorAffinity && selects && !matches(n) {
			return false
		}
		return !k.honorTaint || toleratesNode(pod, n)
	}
	complete := func(n *state.Node) bool {
		for _, k := range all {
			if k.topology.Of(n) < 0 {
				return false
			}
		}
		return true
	}
	out := make([]map[*state.Node]bool, len(all))
	// Otherwise, every node with the label is eligible.
	for i, k := range all {
		if k.honorAffinity && selects || k.honorTaint || !lax && len(all) > 1 {
			out[i] = map[*state.Node]bool{}
		}
	}
	for _, n := range c.State.Nodes() {
		whole := lax || complete(n)
		for i, k := range all {
			if out[i] != nil && (!whole || !takes(n, k)) {
				out[i][n] = true
			}
		}
	}
	for i, k := range all {
		for _, n := range nodes {
			if at := k.topology.Of(n); at >= 0 && !out[i][n] {
				k.counts[at] = 0
			}
		}
		for _, class := range c.State.Classes() {
			if !k.counted(class.Namespace, pod.Namespace, class.Labels, class.Terminating) {
				continue
			}
			for _, t := range class.On {
				if at := k.topology.Of(t.Node); at >= 0 && k.counts[at] >= 0 && !out[i][t.Node] {
					k.counts[at] += t.Count
				}
			}
		}
		k.out = out[i]
		for _, v := range k.counts {
			if v >= 0 {
				k.domains++
			}
		}
		k.settle()
	}
}

// settle computes k.least, the lowest number of matching pods in any domain, after k.counts has changed. If there are
// fewer domains than minDomains, it is 0.
func (k *constraint) settle() {
	k.least = math.MaxInt64
	for _, v := range k.counts {
		if v >= 0 {
			k.least = min(k.least, v)
		}
	}
	if k.domains < k.minDomains {
		k.least = 0
	}
}

// toleratesNode reports whether a pod tolerates all NoSchedule and NoExecute taints of a node.
func toleratesNode(pod *corev1.Pod, n *state.Node) bool {
	for i := range n.Object.Spec.Taints {
		taint := &n.Object.Spec.Taints[i]
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated(pod.Spec.Tolerations, taint) {
			return false
		}
	}
	return true
}

// Filter rejects nodes on which the pod would violate a constraint with DoNotSchedule. It rejects no node and returns
// nil if the pod has none, and an error if one is invalid.
func (p PodTopologySpread) Filter(c *framework.Cycle) (*framework.Check, error) {
	hard, lax, err := p.constraints(c, corev1.DoNotSchedule)
	if err != nil || len(hard) == 0 {
		return nil, err
	}
	count(c, hard, c.State.Nodes(), lax)
	check := func(n *state.Node) []framework.Reason {
		for _, k := range hard {
			at := k.topology.Of(n)
			if at < 0 {
				return reason("node(s) didn't match pod topology spread constraints (missing required label)", true)
			}
			if max(k.counts[at], 0)+k.self-k.least > k.maxSkew {
				return reason("node(s) didn't match pod topology spread constraints", false)
			}
		}
		return nil
	}
	moved := func(p *state.Pod, n *state.Node, by int64) {
		for _, k := range hard {
			at := k.topology.Of(n)
			if at < 0 || k.counts[at] < 0 || k.out[n] ||
				!k.counted(p.Object.Namespace, c.Pod.Object.Namespace, p.Object.Labels, p.Object.DeletionTimestamp != nil) {
				continue
			}
			k.counts[at] += by
			k.settle()
		}
	}
	return &framework.Check{Node: check, Moved: moved}, nil
}

// Score prefers nodes in domains with fewer matching pods, for constraints with ScheduleAnyway. It gives no scores and
// returns false if neither the pod nor the defaults contain such a constraint.
func (p PodTopologySpread) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	soft, lax, err := p.constraints(c, corev1.ScheduleAnyway)
	if err != nil || len(soft) == 0 {
		return false
	}
	count(c, soft, nodes, lax)
	weights := make([]float64, len(soft))
	for i, k := range soft {
		weights[i] = math.Log(float64(k.domains + 2))
	}
	var lowest, highest int64 = math.MaxInt64, 0
	for i, n := range nodes {
		sum := 0.0
		missing := false
		for j, k := range soft {
			at := k.topology.Of(n)
			if at < 0 {
				missing = missing || !lax
				continue
			}
			sum += float64(max(k.counts[at], 0))*weights[j] + float64(k.maxSkew-1)
		}
		if missing {
			out[i] = -1
			continue
		}
		out[i] = int64(math.Round(sum))
		lowest, highest = min(lowest, out[i]), max(highest, out[i])
	}
	for i, v := range out {
		switch {
		case v < 0:
			out[i] = 0
		case highest == 0:
			out[i] = framework.MaxScore
		default:
			out[i] = framework.MaxScore * (highest + lowest - v) / highest
		}
	}
	return true
}
