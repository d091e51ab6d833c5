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

// PodTopologySpread spreads pods over zones, nodes or whatever a label tells.
// https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/
type PodTopologySpread struct {
	// Defaults are for pods that have no constraints of their own, without
	// selectors: the selector is what owners and services select the pod by.
	// Nil means the system's, over nodes and a little over zones.
	Defaults []corev1.TopologySpreadConstraint
}

// Name of the plugin.
func (PodTopologySpread) Name() string { return "PodTopologySpread" }

// Wakes as framework.Waker.
func (PodTopologySpread) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeRemoved | framework.NodeLabelsChanged | framework.NodeTaintsChanged |
		framework.PodRemoved | framework.PodAdded | framework.PodLabelsChanged
}

// systemDefaults are upstream's.
var systemDefaults = []corev1.TopologySpreadConstraint{
	{TopologyKey: corev1.LabelHostname, MaxSkew: 3, WhenUnsatisfiable: corev1.ScheduleAnyway},
	{TopologyKey: corev1.LabelTopologyZone, MaxSkew: 5, WhenUnsatisfiable: corev1.ScheduleAnyway},
}

// constraint is one constraint made ready for counting.
type constraint struct {
	key                       string
	maxSkew, minDomains       int64
	selector                  labels.Selector
	self                      int64 // 1 when the pod matches its own selector
	honorAffinity, honorTaint bool

	topology *state.Topology
	// counts are of matching pods, by the number of the domain; -1 where no
	// node takes part.
	counts []int64
	// out holds the nodes with the label that do not take part.
	out     map[*state.Node]bool
	domains int64
	least   int64
}

// constraints returns those of the pod with the given consequence, or the
// default ones; those that must not rule out nodes for want of a label are lax.
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

// counted tells whether a pod is one that the constraint counts.
func (k *constraint) counted(namespace string, own string, l labels.Set, terminating bool) bool {
	return namespace == own && !terminating && !k.selector.Empty() && k.selector.Matches(l)
}

// count counts the pods of the pod's namespace in each domain, over the nodes
// that take part: those with the labels of all constraints, unless lax, that
// are not kept out by the pod's node affinity or their taints. Only domains of
// one of the given nodes have a count.
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
	// Without any of these every node with the label takes part.
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

// settle finds the least count.
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

func toleratesNode(pod *corev1.Pod, n *state.Node) bool {
	for i := range n.Object.Spec.Taints {
		taint := &n.Object.Spec.Taints[i]
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated(pod.Spec.Tolerations, taint) {
			return false
		}
	}
	return true
}

// Filter as framework.Filter.
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

// Score as framework.Score. Pods without constraints of their own are spread by
// what selects them.
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
