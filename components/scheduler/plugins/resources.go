package plugins

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// NodePorts keeps two pods from taking the same port of a host.
type NodePorts struct{}

// Name of the plugin.
func (NodePorts) Name() string { return "NodePorts" }

// Wakes as framework.Waker.
func (NodePorts) Wakes() framework.Event { return framework.NodeAdded | framework.PodRemoved }

// Filter as framework.Filter.
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

// NodeResourcesFit keeps pods to nodes with room for their requests, and
// prefers those with the most room left, or what its strategy says.
type NodeResourcesFit struct {
	// Strategy of scoring.
	Strategy Strategy
	// Ignored are extended resources that the filter does not look at, and
	// IgnoredGroups those whose name begins with one of them and a slash.
	Ignored       map[corev1.ResourceName]bool
	IgnoredGroups map[string]bool
}

// Name of the plugin.
func (NodeResourcesFit) Name() string { return "NodeResourcesFit" }

// Wakes as framework.Waker.
func (NodeResourcesFit) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeAllocatableChanged | framework.PodRemoved | framework.PodScaledDown | framework.DevicesChanged
}

// Filter as framework.Filter.
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
				continue // DynamicResources looks for devices
			}
			lacks("Insufficient "+string(name), v, have.Scalar[name], used.Scalar[name])
		}
		return reasons
	}}, nil
}

// Score as framework.Score.
func (p NodeResourcesFit) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	return p.Strategy.score(c, nodes, out)
}

// NodeResourcesBalancedAllocation prefers nodes on which resources are used more
// alike with the pod there than without it.
type NodeResourcesBalancedAllocation struct {
	// Resources to compare; nil means CPU and memory.
	Resources []corev1.ResourceName
}

// Name of the plugin.
func (NodeResourcesBalancedAllocation) Name() string { return "NodeResourcesBalancedAllocation" }

// Score as framework.Score.
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
		// From 50 to 100: the balance is worse by all there is, or better.
		out[i] = framework.MaxScore/2 + (framework.MaxScore/2+with-without)/2
	}
	return true
}

// balance is how much alike resources of a node are used with so many times what is
// asked for besides, from half of framework.MaxScore to all of it.
func balance(n *state.Node, names []corev1.ResourceName, asked *state.Resources, times int64) int64 {
	var shares [8]float64
	used := shares[:0]
	for _, name := range names {
		have := n.Allocatable.Get(name)
		// One of devices that the pod does not ask for says nothing.
		if have == 0 || asked.Get(name) == 0 && !basic(name) {
			continue
		}
		used = append(used, min(float64(n.Requested.Get(name)+times*asked.Get(name))/float64(have), 1))
	}
	return int64((1 - deviation(used)) * framework.MaxScore)
}

var cpuAndMemory = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// deviation is the standard deviation.
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
