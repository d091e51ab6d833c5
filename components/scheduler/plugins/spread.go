package plugins

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// PodTopologySpread spreads pods over zones, nodes or whatever a label tells.
// https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/
type PodTopologySpread struct{}

// Name of the plugin.
func (PodTopologySpread) Name() string { return "PodTopologySpread" }

// Wakes as framework.Waker.
func (PodTopologySpread) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeLabelsChanged | framework.NodeTaintsChanged |
		framework.PodRemoved | framework.PodAdded | framework.PodChanged
}

// constraint is one constraint made ready for counting.
type constraint struct {
	key                       string
	maxSkew, minDomains       int64
	selector                  labels.Selector
	self                      int64 // 1 when the pod matches its own selector
	honorAffinity, honorTaint bool
	counts                    map[string]int64 // matching pods by domain
	least                     int64
}

// constraints returns those of the pod with the given consequence.
func constraints(pod *corev1.Pod, when corev1.UnsatisfiableConstraintAction) ([]*constraint, error) {
	var out []*constraint
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		if c.WhenUnsatisfiable != when {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
		if err != nil {
			return nil, fmt.Errorf("topology spread constraint %d: %w", i, err)
		}
		for _, key := range c.MatchLabelKeys {
			if value, ok := pod.Labels[key]; ok {
				requirement, err := labels.NewRequirement(key, selection.In, []string{value})
				if err != nil {
					return nil, fmt.Errorf("topology spread constraint %d: %w", i, err)
				}
				selector = selector.Add(*requirement)
			}
		}
		n := &constraint{
			key: c.TopologyKey, maxSkew: int64(c.MaxSkew), minDomains: 1, selector: selector,
			honorAffinity: c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor,
			honorTaint:    c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
			counts:        map[string]int64{},
		}
		if c.MinDomains != nil {
			n.minDomains = int64(*c.MinDomains)
		}
		if selector.Matches(labels.Set(pod.Labels)) {
			n.self = 1
		}
		out = append(out, n)
	}
	return out, nil
}

// count counts the pods of the pod's namespace in each domain, over the nodes
// that take part.
func (c *constraint) count(cycle *framework.Cycle, nodes []*state.Node, all []*constraint) {
	pod := cycle.Pod.Object
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
nodes:
	for _, n := range nodes {
		domain, ok := n.Object.Labels[c.key]
		if !ok {
			continue
		}
		for _, other := range all {
			if _, ok := n.Object.Labels[other.key]; !ok {
				continue nodes
			}
		}
		if c.honorAffinity {
			if ok, err := affinity.Match(n.Object); !ok || err != nil {
				continue
			}
		}
		if c.honorTaint && !toleratesNode(pod, n) {
			continue
		}
		c.counts[domain] += matching(n, pod.Namespace, c.selector)
	}
	c.least = math.MaxInt64
	for _, v := range c.counts {
		c.least = min(c.least, v)
	}
	if int64(len(c.counts)) < c.minDomains {
		c.least = 0
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

func matching(n *state.Node, namespace string, selector labels.Selector) int64 {
	if selector.Empty() {
		return 0
	}
	var count int64
	for _, p := range n.Pods {
		if p.Object.Namespace == namespace && p.Object.DeletionTimestamp == nil && selector.Matches(labels.Set(p.Object.Labels)) {
			count++
		}
	}
	return count
}

// Filter as framework.Filter.
func (PodTopologySpread) Filter(c *framework.Cycle) (framework.Check, error) {
	hard, err := constraints(c.Pod.Object, corev1.DoNotSchedule)
	if err != nil || len(hard) == 0 {
		return nil, err
	}
	for _, k := range hard {
		k.count(c, c.State.Nodes(), hard)
	}
	return func(n *state.Node) []framework.Reason {
		for _, k := range hard {
			domain, ok := n.Object.Labels[k.key]
			if !ok {
				return reason("node(s) didn't match pod topology spread constraints (missing required label)", true)
			}
			if k.counts[domain]+k.self-k.least > k.maxSkew {
				return reason("node(s) didn't match pod topology spread constraints", false)
			}
		}
		return nil
	}, nil
}

// Score as framework.Score. Pods without constraints of their own are spread by
// what selects them, over nodes and a little over zones.
func (PodTopologySpread) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	soft, err := constraints(c.Pod.Object, corev1.ScheduleAnyway)
	if err != nil {
		return false
	}
	ignoreMissing := false
	if len(c.Pod.Object.Spec.TopologySpreadConstraints) == 0 {
		if soft = defaultConstraints(c); soft == nil {
			return false
		}
		ignoreMissing = true
	}
	if len(soft) == 0 {
		return false
	}
	var all []*constraint
	if !ignoreMissing {
		all = soft
	}
	for _, k := range soft {
		k.count(c, c.State.Nodes(), all)
	}
	var lowest, highest int64 = math.MaxInt64, 0
	for i, n := range nodes {
		sum := 0.0
		missing := false
		for _, k := range soft {
			domain, ok := n.Object.Labels[k.key]
			if !ok {
				missing = missing || !ignoreMissing
				continue
			}
			weight := math.Log(float64(len(k.counts) + 2))
			sum += float64(k.counts[domain])*weight + float64(k.maxSkew-1)
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

func defaultConstraints(c *framework.Cycle) []*constraint {
	if c.SpreadSelector == nil {
		return nil
	}
	set := c.SpreadSelector(c.Pod.Object)
	if len(set) == 0 {
		return nil
	}
	selector := labels.SelectorFromSet(set)
	return []*constraint{
		{key: corev1.LabelHostname, maxSkew: 3, selector: selector, counts: map[string]int64{}},
		{key: corev1.LabelTopologyZone, maxSkew: 5, selector: selector, counts: map[string]int64{}},
	}
}
