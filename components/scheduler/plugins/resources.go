package plugins

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// NodePorts excludes nodes where another pod uses one of the pod's host ports.
type NodePorts struct{}

// Name returns the name of the plugin in configuration files.
func (NodePorts) Name() string { return "NodePorts" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (NodePorts) Wakes() framework.Event { return framework.NodeAdded | framework.PodRemoved }

// Filter rejects nodes where a pod uses a host port of the pod. It rejects no node and returns nil if the pod has no
// host ports.
func (NodePorts) Filter(c *framework.Cycle) (*framework.Check, error) {
	if len(c.Pod.Ports) == 0 {
		return nil, nil
	}
	return &framework.Check{Node: func(n *state.Node) []framework.Reason {
		if slices.ContainsFunc(c.Pod.Ports, n.Conflicts) {
			return reason("node(s) didn't have free ports for the requested pod ports", false)
		}
		return nil
	}}, nil
}

// NodeResourcesFit excludes nodes without sufficient resources for the pod's requests, and scores
// nodes with its strategy, by default preferring nodes with the most free resources.
type NodeResourcesFit struct {
	// Strategy is the scoring strategy.
	Strategy Strategy
	// Ignored are extended resources that the filter ignores. IgnoredGroups are the prefixes,
	// before a slash, of further ignored resources.
	Ignored       map[corev1.ResourceName]bool
	IgnoredGroups map[string]bool
}

// Name returns the name of the plugin in configuration files.
func (NodeResourcesFit) Name() string { return "NodeResourcesFit" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected.
func (NodeResourcesFit) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeAllocatableChanged | framework.PodRemoved | framework.PodScaledDown | framework.DevicesChanged
}

// Filter rejects nodes whose allocatable resources, minus the requests of their pods, do not cover the pod's requests.
// Preemption cannot help if a request exceeds the allocatable amount. It ignores the resources in Ignored and
// IgnoredGroups, and extended resources that the node does not have but a DeviceClass provides, which DynamicResources
// checks.
func (p NodeResourcesFit) Filter(c *framework.Cycle) (*framework.Check, error) {
	want := c.Pod.Requests
	return &framework.Check{Node: func(n *state.Node) []framework.Reason {
		have, used := &n.Allocatable, &n.Requested
		if used.Pods < have.Pods && want.CPU <= have.CPU-used.CPU && want.Memory <= have.Memory-used.Memory &&
			want.Ephemeral <= have.Ephemeral-used.Ephemeral && len(want.Scalar) == 0 {
			return nil
		}
		var reasons []framework.Reason
		lacks := func(text string, want, have, used int64) {
			if want > 0 && want > have-used {
				reasons = append(reasons, framework.Reason{Text: text, Unresolvable: want > have})
			}
		}
		lacks("Too many pods", 1, have.Pods, used.Pods)
		lacks("Insufficient cpu", want.CPU, have.CPU, used.CPU)
		lacks("Insufficient memory", want.Memory, have.Memory, used.Memory)
		lacks("Insufficient ephemeral-storage", want.Ephemeral, have.Ephemeral, used.Ephemeral)
		for name, v := range want.Scalar {
			group, _, _ := strings.Cut(string(name), "/")
			if p.Ignored[name] || p.IgnoredGroups[group] {
				continue
			}
			if c.Devices != nil && have.Scalar[name] == 0 && c.Devices.Class(name) != nil {
				continue // the DynamicResources plugin checks devices
			}
			lacks("Insufficient "+string(name), v, have.Scalar[name], used.Scalar[name])
		}
		return reasons
	}}, nil
}

// Score gives each node the score of the configured strategy for its resource utilization with the pod. It always
// returns true.
func (p NodeResourcesFit) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	return p.Strategy.score(c, nodes, out)
}

// NodeResourcesBalancedAllocation prefers nodes whose resources are used more evenly with the pod
// than without it.
type NodeResourcesBalancedAllocation struct {
	// Resources are the resources to compare; nil means CPU and memory.
	Resources []corev1.ResourceName
}

// Name returns the name of the plugin in configuration files.
func (NodeResourcesBalancedAllocation) Name() string { return "NodeResourcesBalancedAllocation" }

// Score prefers nodes on which the pod makes the utilization of the resources more even. It gives no scores and
// returns false if the pod requests none of the resources.
func (p NodeResourcesBalancedAllocation) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	names := p.Resources
	if names == nil {
		names = cpuAndMemory
	}
	asked := false
	for _, name := range names {
		asked = asked || c.Pod.Requests.Get(name) > 0
	}
	if !asked {
		return false
	}
	for i, n := range nodes {
		with, without := balance(n, names, &c.Pod.Requests, 1), balance(n, names, &c.Pod.Requests, 0)
		// The score is from 50 to 100, depending on the change of the balance.
		out[i] = framework.MaxScore/2 + (framework.MaxScore/2+with-without)/2
	}
	return true
}

// balance returns how even the utilization of a node's resources is after the requests asked were added times times,
// from half of framework.MaxScore to framework.MaxScore for completely even. names are the resources to compare;
// extended resources that the pod does not request are ignored.
func balance(n *state.Node, names []corev1.ResourceName, asked *state.Resources, times int64) int64 {
	var shares [8]float64
	used := shares[:0]
	for _, name := range names {
		have := n.Allocatable.Get(name)
		// Ignore extended resources that the pod does not request.
		if have == 0 || asked.Get(name) == 0 && !isBasic(name) {
			continue
		}
		used = append(used, min(float64(n.Requested.Get(name)+times*asked.Get(name))/float64(have), 1))
	}
	return int64((1 - deviation(used)) * framework.MaxScore)
}

// cpuAndMemory are the resources that NodeResourcesBalancedAllocation compares by default.
var cpuAndMemory = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// deviation returns the standard deviation of values, or 0 for fewer than two.
func deviation(values []float64) float64 {
	if len(values) < 2 {
		return 0
	}
	if len(values) == 2 {
		return math.Abs(values[0]-values[1]) / 2
	}
	var mean, sum float64
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for _, v := range values {
		sum += (v - mean) * (v - mean)
	}
	return math.Sqrt(sum / float64(len(values)))
}
