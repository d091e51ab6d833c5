// Package plugins holds the scheduler's plugins, one file a concern. They are
// pure: what they say depends on the cycle alone.
package plugins

import (
	"time"

	"hyperkube/components/scheduler/framework"
)

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
	// Devices allocates devices, and is among the filters; nil: pods' resource
	// claims are not looked at.
	Devices *DynamicResources
	// Preemption makes room for pods by evicting others; nil: none is made.
	Preemption *DefaultPreemption
}

// DefaultPreemption evicts pods of lower priority for those that fit nowhere.
// What it decides stands where the cycle is.
// https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
type DefaultPreemption struct {
	// Percentage of nodes that are compared at least, and how many.
	Percentage, Absolute int
}

// Name of the plugin.
func (DefaultPreemption) Name() string { return "DefaultPreemption" }

// Enough returns of how many nodes the best is chosen when there are so many
// where evictions may help.
func (p *DefaultPreemption) Enough(nodes int) int {
	return max(min(max(nodes*p.Percentage/100, p.Absolute), nodes), 1)
}

// Args are the plugins that can be set up.
type Args struct {
	Affinity   NodeAffinity
	Fit        NodeResourcesFit
	Balanced   NodeResourcesBalancedAllocation
	Spread     PodTopologySpread
	InterPod   InterPodAffinity
	Preemption DefaultPreemption
	Volumes    VolumeBinding
	Devices    DynamicResources
}

// DefaultArgs are upstream's.
func DefaultArgs() Args {
	return Args{InterPod: InterPodAffinity{HardWeight: 1}, Preemption: DefaultPreemption{Percentage: 10, Absolute: 100}, Volumes: VolumeBinding{BindTimeout: 10 * time.Minute},
		Devices: DynamicResources{FilterTimeout: 10 * time.Second, BindingTimeout: 10 * time.Minute}}
}

// Default is upstream's set with its weights.
func Default() Set { return With(DefaultArgs()) }

// With is Default with other arguments.
func With(a Args) Set {
	return Set{
		PreEnqueue: []framework.PreEnqueue{SchedulingGates{}},
		Filter: []framework.Filter{
			NodeUnschedulable{}, NodeName{}, TaintToleration{}, a.Affinity,
			NodePorts{}, a.Fit, VolumeRestrictions{}, NodeVolumeLimits{}, a.Volumes, VolumeZone{}, a.Spread, a.InterPod, NodeDeclaredFeatures{}, a.Devices,
		},
		Score: []Weighted{
			{TaintToleration{}, 3}, {a.Affinity, 2}, {a.Fit, 1}, {a.Spread, 2},
			{a.InterPod, 2}, {a.Balanced, 1}, {ImageLocality{}, 1}, {a.Volumes, 1},
		},
		Devices:    &a.Devices,
		Preemption: &a.Preemption,
	}
}
