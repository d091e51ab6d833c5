package plugins

import (
	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// InterPodAffinity is the plugin for affinity and anti-affinity between pods, both of the pod to schedule and of
// existing pods. https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
type InterPodAffinity struct {
	// HardWeight is the weight, in the score, of an existing pod's required affinity to the pod to
	// schedule. Zero ignores it.
	HardWeight int64
	// IgnorePreferred disables preferences of existing pods for pods without preferences.
	IgnorePreferred bool
}

// Name returns the name of the plugin in configuration files.
func (InterPodAffinity) Name() string { return "InterPodAffinity" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (InterPodAffinity) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeLabelsChanged | framework.PodAdded | framework.PodRemoved | framework.PodLabelsChanged
}

// topologyCounts counts pods by the values of one node label, such as the pods in each zone.
type topologyCounts struct {
	key      string
	topology *state.Topology
	counts   []int64
}

// newTopologyCounts returns counts of zero for each value of the node label key.
func newTopologyCounts(s *state.State, key string) *topologyCounts {
	t := s.Topology(key)
	return &topologyCounts{key: key, topology: t, counts: make([]int64, t.Len())}
}

// add adds by to the count for the label value of a node. It does nothing if the node does not have the label.
func (p *topologyCounts) add(n *state.Node, by int64) {
	if i := p.topology.Of(n); i >= 0 {
		p.counts[i] += by
	}
}

// at returns the count for the label value of a node. It returns false if the node does not have the label.
func (p *topologyCounts) at(n *state.Node) (int64, bool) {
	i := p.topology.Of(n)
	if i < 0 {
		return 0, false
	}
	return p.counts[i], true
}

// countsByKey returns the counts for the node label key in list. If there are none, it appends new ones. It searches
// linearly, because list is short.
func countsByKey(list *[]*topologyCounts, s *state.State, key string) *topologyCounts {
	for _, p := range *list {
		if p.key == key {
			return p
		}
	}
	p := newTopologyCounts(s, key)
	*list = append(*list, p)
	return p
}

// affinityState is the state of the InterPodAffinity filter for the pod that is being scheduled.
type affinityState struct {
	c         *framework.Cycle
	own       *state.Terms
	pod       labels.Set
	namespace string // namespace of the pod
	// near and away count the pods that match the pod's required affinity and anti-affinity terms, one
	// entry for each term. existingAway counts the pods whose anti-affinity terms match the pod to
	// schedule, one entry for each topology key.
	near, away, existingAway []*topologyCounts
	// found is the number of pods that match all near terms.
	found int64
	// first is true if the pod matches its own terms, so that the first pod of a group can be
	// assigned to any node.
	first bool
}

// Filter rejects nodes that do not satisfy the pod's required affinity or anti-affinity, and nodes where existing pods
// have anti-affinity to the pod. It returns nil if there are no such terms and no pod is nominated to a node, and an
// error if a term of the pod is invalid.
func (InterPodAffinity) Filter(c *framework.Cycle) (*framework.Check, error) {
	own := c.Pod.Terms
	if own == nil {
		own = &state.Terms{}
	}
	if own.Err != nil {
		return nil, own.Err
	}
	k := &affinityState{c: c, own: own, pod: c.Pod.Object.Labels, namespace: c.Pod.Object.Namespace}
	if len(own.Near)+len(own.Away) > 0 {
		for _, t := range own.Near {
			k.near = append(k.near, newTopologyCounts(c.State, t.Key))
		}
		for _, t := range own.Away {
			k.away = append(k.away, newTopologyCounts(c.State, t.Key))
		}
		for _, class := range c.State.Classes() {
			k.countOwn(class.Namespace, class.Labels, class.On, 1)
		}
		k.first = len(own.Near) > 0 && k.all(k.namespace, k.pod)
	}
	for _, class := range c.State.AwayClasses() {
		k.countExisting(class.Terms, class.On, 1)
	}
	if len(k.near)+len(k.away)+len(k.existingAway) == 0 && !c.State.AnyNominated() {
		return nil, nil
	}
	return &framework.Check{Node: k.check, Moved: k.moved}, nil
}

// countOwn adds the number of pods with this namespace and these labels on each node, on, to the counts of the pods
// that match the affinity (k.near) and anti-affinity terms (k.away) of the pod to schedule, if they match. by is 1, or
// -1 to subtract the pods.
func (k *affinityState) countOwn(namespace string, l labels.Set, on []*state.Tally, by int64) {
	for i, t := range k.own.Away {
		if t.Matches(k.c.Namespaces, namespace, l) {
			for _, tally := range on {
				k.away[i].add(tally.Node, by*tally.Count)
			}
		}
	}
	if len(k.near) == 0 || !k.all(namespace, l) {
		return
	}
	for _, p := range k.near {
		for _, tally := range on {
			if p.topology.Of(tally.Node) >= 0 {
				p.add(tally.Node, by*tally.Count)
				k.found += by * tally.Count
			}
		}
	}
}

// all reports whether pods with the namespace and labels match all required affinity terms of the pod.
func (k *affinityState) all(namespace string, l labels.Set) bool {
	for _, t := range k.own.Near {
		if !t.Matches(k.c.Namespaces, namespace, l) {
			return false
		}
	}
	return true
}

// countExisting adds the number of existing pods on each node, on, to k.existingAway for each of their required
// anti-affinity terms, terms, that matches the pod to schedule. by is 1, or -1 to subtract the pods.
func (k *affinityState) countExisting(terms *state.Terms, on []*state.Tally, by int64) {
	for _, t := range terms.Away {
		if t.Matches(k.c.Namespaces, k.namespace, k.pod) {
			p := countsByKey(&k.existingAway, k.c.State, t.Key)
			for _, tally := range on {
				p.add(tally.Node, by*tally.Count)
			}
		}
	}
}

// moved updates the counts when a pod is added to a node or removed from it in the cycle, see framework.Check.Moved.
func (k *affinityState) moved(p *state.Pod, n *state.Node, by int64) {
	on := []*state.Tally{{Node: n, Count: 1}}
	k.countOwn(p.Object.Namespace, p.Object.Labels, on, by)
	if p.Terms != nil {
		k.countExisting(p.Terms, on, by)
	}
}

// check returns why a node does not satisfy the pod's affinity and anti-affinity rules or the anti-affinity rules of
// existing pods, or nil if it satisfies them. See framework.Check.Node.
func (k *affinityState) check(n *state.Node) []framework.Reason {
	for _, p := range k.near {
		count, ok := p.at(n)
		if !ok || count <= 0 && (k.found > 0 || !k.first) {
			return reason("node(s) didn't match pod affinity rules", true)
		}
	}
	for _, p := range k.away {
		if count, _ := p.at(n); count > 0 {
			return reason("node(s) didn't match pod anti-affinity rules", false)
		}
	}
	for _, p := range k.existingAway {
		if count, _ := p.at(n); count > 0 {
			return reason("node(s) didn't satisfy existing pods anti-affinity rules", false)
		}
	}
	return nil
}

// Score prefers nodes that satisfy more of the preferred affinity and anti-affinity terms, by weight, of the pod and
// of existing pods. It gives no scores and returns false if no term applies.
func (p InterPodAffinity) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	own := c.Pod.Terms
	if own == nil {
		own = &state.Terms{}
	}
	if len(own.Preferred) == 0 && p.IgnorePreferred {
		return false
	}
	var sums []*topologyCounts
	count := func(t *state.Term, weight int64, on []*state.Tally) {
		sum := countsByKey(&sums, c.State, t.Key)
		for _, tally := range on {
			sum.add(tally.Node, weight*tally.Count)
		}
	}
	if len(own.Preferred) > 0 {
		for _, class := range c.State.Classes() {
			for _, t := range own.Preferred {
				if t.Matches(c.Namespaces, class.Namespace, class.Labels) {
					count(t, t.Weight, class.On)
				}
			}
		}
	}
	for _, class := range c.State.AffineClasses() {
		for _, t := range class.Terms.Preferred {
			if t.Matches(c.Namespaces, c.Pod.Object.Namespace, c.Pod.Object.Labels) {
				count(t, t.Weight, class.On)
			}
		}
		if p.HardWeight == 0 {
			continue
		}
		for _, t := range class.Terms.Near {
			if t.Matches(c.Namespaces, c.Pod.Object.Namespace, c.Pod.Object.Labels) {
				count(t, p.HardWeight, class.On)
			}
		}
	}
	if len(sums) == 0 {
		return false
	}
	var lowest, highest int64
	for i, n := range nodes {
		out[i] = 0
		for _, sum := range sums {
			v, _ := sum.at(n)
			out[i] += v
		}
		if i == 0 {
			lowest, highest = out[i], out[i]
		}
		lowest, highest = min(lowest, out[i]), max(highest, out[i])
	}
	for i := range out {
		if highest == lowest {
			out[i] = 0
			continue
		}
		out[i] = framework.MaxScore * (out[i] - lowest) / (highest - lowest)
	}
	return true
}
