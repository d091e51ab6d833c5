package plugins

import (
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
func (NodePorts) Filter(c *framework.Cycle) (framework.Check, error) {
	if len(c.Pod.Ports) == 0 {
		return nil, nil
	}
	return func(n *state.Node) []framework.Reason {
		for _, port := range c.Pod.Ports {
			if n.Conflicts(port) {
				return reason("node(s) didn't have free ports for the requested pod ports", false)
			}
		}
		return nil
	}, nil
}

// NodeResourcesFit keeps pods to nodes with room for their requests, and
// prefers those with the most room left.
type NodeResourcesFit struct{}

// Name of the plugin.
func (NodeResourcesFit) Name() string { return "NodeResourcesFit" }

// Wakes as framework.Waker.
func (NodeResourcesFit) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeAllocatableChanged | framework.PodRemoved | framework.PodChanged
}

// Filter as framework.Filter.
func (NodeResourcesFit) Filter(c *framework.Cycle) (framework.Check, error) {
	want := c.Pod.Requests
	return func(n *state.Node) []framework.Reason {
		have, used := &n.Allocatable, &n.Requested
		var reasons []framework.Reason
		lacks := func(name string, want, have, used int64) {
			if want > 0 && want > have-used {
				reasons = append(reasons, framework.Reason{Text: name, Unresolvable: want > have})
			}
		}
		lacks("Too many pods", 1, have.Pods, used.Pods)
		lacks("Insufficient cpu", want.CPU, have.CPU, used.CPU)
		lacks("Insufficient memory", want.Memory, have.Memory, used.Memory)
		lacks("Insufficient ephemeral-storage", want.Ephemeral, have.Ephemeral, used.Ephemeral)
		for name, v := range want.Scalar {
			lacks("Insufficient "+string(name), v, have.Scalar[name], used.Scalar[name])
		}
		return reasons
	}, nil
}

// Score as framework.Score: the mean of the shares of CPU and memory that are
// left with the pod there.
func (NodeResourcesFit) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	for i, n := range nodes {
		out[i] = (left(n.Allocatable.CPU, n.AssumedCPU+c.Pod.AssumedCPU) +
			left(n.Allocatable.Memory, n.AssumedMemory+c.Pod.AssumedMemory)) / 2
	}
	return true
}

func left(have, used int64) int64 {
	if have <= 0 || used > have {
		return 0
	}
	return (have - used) * framework.MaxScore / have
}

// NodeResourcesBalancedAllocation prefers nodes on which CPU and memory are
// used alike with the pod there.
type NodeResourcesBalancedAllocation struct{}

// Name of the plugin.
func (NodeResourcesBalancedAllocation) Name() string { return "NodeResourcesBalancedAllocation" }

// Score as framework.Score.
func (NodeResourcesBalancedAllocation) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	if c.Pod.Requests.CPU == 0 && c.Pod.Requests.Memory == 0 {
		return false
	}
	for i, n := range nodes {
		cpu := share(n.Requested.CPU+c.Pod.Requests.CPU, n.Allocatable.CPU)
		memory := share(n.Requested.Memory+c.Pod.Requests.Memory, n.Allocatable.Memory)
		difference := cpu - memory
		if difference < 0 {
			difference = -difference
		}
		// Of two values the standard deviation is half of the difference.
		out[i] = framework.MaxScore - difference*framework.MaxScore/2/shareOne
	}
	return true
}

const shareOne = 1 << 20

func share(used, have int64) int64 {
	if have <= 0 || used >= have {
		return shareOne
	}
	return int64(float64(used) / float64(have) * shareOne)
}
