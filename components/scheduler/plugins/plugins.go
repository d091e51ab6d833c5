// Package plugins holds the scheduler's plugins, one file a concern. They are
// pure: what they say depends on the cycle alone.
package plugins

import "hyperkube/components/scheduler/framework"

// Weighted is a score with its weight in the sum.
type Weighted struct {
	framework.Score
	Weight int64
}

// Set is which plugins a profile runs.
type Set struct {
	PreEnqueue []framework.PreEnqueue
	// Filter in the order in which they are asked: what is cheap and rules
	// out most comes first.
	Filter []framework.Filter
	Score  []Weighted
	// Preemption makes room for pods by evicting others; nil: none is made.
	Preemption *DefaultPreemption
}

// DefaultPreemption evicts pods of lower priority for those that fit nowhere.
// What it decides stands where the cycle is.
// https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
type DefaultPreemption struct {
	// Percentage of nodes that are compared at least, and how many; zero
	// means 10 and 100.
	Percentage, Absolute int
}

// Name of the plugin.
func (DefaultPreemption) Name() string { return "DefaultPreemption" }

// Enough returns of how many nodes the best is chosen when there are so many
// where evictions may help.
func (p *DefaultPreemption) Enough(nodes int) int {
	percentage, absolute := p.Percentage, p.Absolute
	if percentage == 0 {
		percentage = 10
	}
	if absolute == 0 {
		absolute = 100
	}
	return min(max(nodes*percentage/100, absolute), nodes)
}

// Default is upstream's set with its weights.
func Default() Set {
	return Set{
		PreEnqueue: []framework.PreEnqueue{SchedulingGates{}},
		Filter: []framework.Filter{
			NodeUnschedulable{}, NodeName{}, TaintToleration{}, NodeAffinity{},
			NodePorts{}, NodeResourcesFit{}, PodTopologySpread{}, InterPodAffinity{HardWeight: 1},
		},
		Score: []Weighted{
			{TaintToleration{}, 3}, {NodeAffinity{}, 2}, {NodeResourcesFit{}, 1}, {PodTopologySpread{}, 2},
			{InterPodAffinity{HardWeight: 1}, 2}, {NodeResourcesBalancedAllocation{}, 1}, {ImageLocality{}, 1},
		},
		Preemption: &DefaultPreemption{},
	}
}

// Without returns the set less the named plugins; "*" names all.
func (s Set) Without(names ...string) Set {
	gone := map[string]bool{}
	for _, name := range names {
		gone[name] = true
	}
	keep := func(p framework.Plugin) bool { return !gone["*"] && !gone[p.Name()] }
	var out Set
	for _, p := range s.PreEnqueue {
		if keep(p) {
			out.PreEnqueue = append(out.PreEnqueue, p)
		}
	}
	for _, p := range s.Filter {
		if keep(p) {
			out.Filter = append(out.Filter, p)
		}
	}
	for _, p := range s.Score {
		if keep(p) {
			out.Score = append(out.Score, p)
		}
	}
	if s.Preemption != nil && keep(s.Preemption) {
		out.Preemption = s.Preemption
	}
	return out
}
