// Package plugins contains the scheduler's plugins. They are pure functions of the cycle.
package plugins

import (
	"time"

	"hyperkube/components/scheduler/framework"
)

// Weighted is a score plugin with the weight by which a profile multiplies its scores.
type Weighted struct {
	framework.Score
	Weight int64
}

// Set contains the plugins that a profile enables, by extension point.
type Set struct {
	PreEnqueue []framework.PreEnqueue
	// Filter are the filters in order: the cheapest, and those that exclude most nodes, come first.
	Filter []framework.Filter
	Score  []Weighted
	// Devices is the DynamicResources plugin, which is also in Filter. If nil, pods' resource
	// claims are not checked.
	Devices *DynamicResources
	// Preemption evicts pods of lower priority for unschedulable pods. If nil, there is no
	// preemption.
	Preemption *DefaultPreemption
}

// DefaultPreemption is the configuration of preemption: evicting pods of lower priority so that an unschedulable pod
// fits. Package scheduler implements preemption itself.
// https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
type DefaultPreemption struct {
	// Percentage and Absolute are the minimum percentage and number of candidate nodes to compare.
	Percentage, Absolute int
}

// Name returns the name of the plugin in configuration files.
func (DefaultPreemption) Name() string { return "DefaultPreemption" }

// Enough returns the number of candidate nodes that preemption compares before it chooses one. nodes is the number of
// nodes in the cluster.
func (p *DefaultPreemption) Enough(nodes int) int {
	return max(min(max(nodes*p.Percentage/100, p.Absolute), nodes), 1)
}

// Args contains the plugins that have arguments, with the values of their arguments.
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

// DefaultArgs returns upstream's default arguments.
func DefaultArgs() Args {
	return Args{InterPod: InterPodAffinity{HardWeight: 1}, Preemption: DefaultPreemption{Percentage: 10, Absolute: 100}, Volumes: VolumeBinding{BindTimeout: 10 * time.Minute},
		Devices: DynamicResources{FilterTimeout: 10 * time.Second, BindingTimeout: 10 * time.Minute}}
}

// Default returns upstream's default plugins and weights.
func Default() Set { return With(DefaultArgs()) }

// With returns upstream's default plugins and weights, in which the plugins have the arguments a.
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
