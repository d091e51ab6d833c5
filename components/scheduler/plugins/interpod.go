package plugins

import (
	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// InterPodAffinity keeps pods near to or away from other pods, both as the pod
// itself wishes and as those that are there already do.
// https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
type InterPodAffinity struct {
	// HardWeight is what a required affinity of a pod that is there counts
	// for one that it would be near to; 0 is nothing.
	HardWeight int64
	// IgnorePreferred: what pods that are there prefer does not count for
	// pods that prefer nothing.
	IgnorePreferred bool
}

// Name of the plugin.
func (InterPodAffinity) Name() string { return "InterPodAffinity" }

// Wakes as framework.Waker.
func (InterPodAffinity) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeLabelsChanged | framework.PodAdded | framework.PodRemoved | framework.PodLabelsChanged
}

// places counts by the values of one label of nodes.
type places struct {
	key      string
	topology *state.Topology
	counts   []int64
}

func newPlaces(s *state.State, key string) *places {
	t := s.Topology(key)
	return &places{key: key, topology: t, counts: make([]int64, t.Len())}
}

func (p *places) add(n *state.Node, by int64) {
	if i := p.topology.Of(n); i >= 0 {
		p.counts[i] += by
	}
}

// at returns the count of the node's place, false when the node has none.
func (p *places) at(n *state.Node) (int64, bool) {
	i := p.topology.Of(n)
	if i < 0 {
		return 0, false
	}
	return p.counts[i], true
}

// byKey finds the places of a label in a list, and makes them if need be; labels
// that matter at once are few.
func byKey(list *[]*places, s *state.State, key string) *places {
	for _, p := range *list {
		if p.key == key {
			return p
		}
	}
	p := newPlaces(s, key)
	*list = append(*list, p)
	return p
}

// nearness is what the filter knows of other pods.
type nearness struct {
	c    *framework.Cycle
	own  *state.Terms
	pod  labels.Set
	home string // the pod's namespace
	// near and away are where pods are that the pod's terms speak of, by
	// term; unwelcome where pods are that speak of this one, by label.
	near, away, unwelcome []*places
	// found counts the pods that all near terms speak of.
	found int64
	// first: the pod is one that its own terms speak of, so that the first
	// of a group may go anywhere.
	first bool
}

// Filter as framework.Filter.
func (InterPodAffinity) Filter(c *framework.Cycle) (*framework.Check, error) {
	own := c.Pod.Terms
	if own == nil {
		own = &state.Terms{}
	}
	if own.Err != nil {
		return nil, own.Err
	}
	k := &nearness{c: c, own: own, pod: c.Pod.Object.Labels, home: c.Pod.Object.Namespace}
	if len(own.Near)+len(own.Away) > 0 {
		for _, t := range own.Near {
			k.near = append(k.near, newPlaces(c.State, t.Key))
		}
		for _, t := range own.Away {
			k.away = append(k.away, newPlaces(c.State, t.Key))
		}
		for _, class := range c.State.Classes() {
			k.mine(class.Namespace, class.Labels, class.On, 1)
		}
		k.first = len(own.Near) > 0 && k.all(k.home, k.pod)
	}
	for _, class := range c.State.AwayClasses() {
		k.theirs(class.Terms, class.On, 1)
	}
	if len(k.near)+len(k.away)+len(k.unwelcome) == 0 && !c.State.AnyNominated() {
		return nil, nil
	}
	return &framework.Check{Node: k.check, Moved: k.moved}, nil
}

// mine counts pods that the pod's terms speak of.
func (k *nearness) mine(namespace string, l labels.Set, on []*state.Tally, by int64) {
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

// all tells whether all near terms speak of a pod.
func (k *nearness) all(namespace string, l labels.Set) bool {
	for _, t := range k.own.Near {
		if !t.Matches(k.c.Namespaces, namespace, l) {
			return false
		}
	}
	return true
}

// theirs counts pods that must be kept away from this one.
func (k *nearness) theirs(terms *state.Terms, on []*state.Tally, by int64) {
	for _, t := range terms.Away {
		if t.Matches(k.c.Namespaces, k.home, k.pod) {
			p := byKey(&k.unwelcome, k.c.State, t.Key)
			for _, tally := range on {
				p.add(tally.Node, by*tally.Count)
			}
		}
	}
}

// moved as framework.Check.Moved.
func (k *nearness) moved(p *state.Pod, n *state.Node, by int64) {
	on := []*state.Tally{{Node: n, Count: 1}}
	k.mine(p.Object.Namespace, p.Object.Labels, on, by)
	if p.Terms != nil {
		k.theirs(p.Terms, on, by)
	}
}

// check as framework.Check.Node.
func (k *nearness) check(n *state.Node) []framework.Reason {
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
	for _, p := range k.unwelcome {
		if count, _ := p.at(n); count > 0 {
			return reason("node(s) didn't satisfy existing pods anti-affinity rules", false)
		}
	}
	return nil
}

// Score as framework.Score.
func (p InterPodAffinity) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	own := c.Pod.Terms
	if own == nil {
		own = &state.Terms{}
	}
	if len(own.Preferred) == 0 && p.IgnorePreferred {
		return false
	}
	var sums []*places
	count := func(t *state.Term, weight int64, on []*state.Tally) {
		sum := byKey(&sums, c.State, t.Key)
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
