package plugins

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// Strategy is the scoring strategy of NodeResourcesFit: it scores nodes by their resource utilization with the pod. The
// zero value is upstream's default, which prefers a low utilization of CPU and memory.
// https://kubernetes.io/docs/concepts/scheduling-eviction/resource-bin-packing/
type Strategy struct {
	// Most prefers a high utilization. It is ignored if Shape is set.
	Most bool
	// Shape maps utilizations to scores, with linear interpolation between the points. If nil, the
	// score is linear.
	Shape []Point
	// Resources are the weighted resources; nil means CPU and memory with equal weights.
	Resources []WeightedResource
}

// Point is a point of Strategy.Shape or VolumeBinding.Shape: the score at a utilization.
type Point struct {
	// Utilization is in percent, in increasing order.
	Utilization int64
	// Score is from 0 to framework.MaxScore.
	Score int64
}

// WeightedResource is a resource and its weight in the score of a node.
type WeightedResource struct {
	Name   corev1.ResourceName
	Weight int64
}

// defaultResources are the resources of a Strategy without Resources.
var defaultResources = []WeightedResource{{corev1.ResourceCPU, 1}, {corev1.ResourceMemory, 1}}

// score sets the score of each node in out. It always returns true, see framework.Score.
func (s *Strategy) score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	resources := s.Resources
	if resources == nil {
		resources = defaultResources
	}
	for i, n := range nodes {
		var sum, weights int64
		for _, r := range resources {
			have := n.Allocatable.Get(r.Name)
			want := nonZero(c.Pod.NonZeroCPU, c.Pod.NonZeroMemory, &c.Pod.Requests, r.Name)
			// Ignore a resource that the node does not have, and an extended resource that the pod
			// does not request.
			if have == 0 || want == 0 && !isBasic(r.Name) {
				continue
			}
			used := nonZero(n.NonZeroCPU, n.NonZeroMemory, &n.Requested, r.Name) + want
			score := s.one(have, used)
			if s.Shape != nil && score == 0 {
				continue
			}
			sum += score * r.Weight
			weights += r.Weight
		}
		switch {
		case weights == 0:
			out[i] = 0
		case s.Shape != nil:
			out[i] = int64(math.Round(float64(sum) / float64(weights)))
		default:
			out[i] = sum / weights
		}
	}
	return true
}

// one returns the score for one resource of which a node has the amount have, and would use the amount used with the
// pod.
func (s *Strategy) one(have, used int64) int64 {
	switch {
	case s.Shape != nil:
		if used > have {
			return onShape(s.Shape, 100)
		}
		return onShape(s.Shape, used*100/have)
	case s.Most:
		return min(used, have) * framework.MaxScore / have
	case used > have:
		return 0
	}
	return (have - used) * framework.MaxScore / have
}

// onShape returns the score of shape for a utilization in percent. Between two points it interpolates; outside of them
// it returns the score of the nearest one.
func onShape(shape []Point, utilization int64) int64 {
	for i, p := range shape {
		if utilization > p.Utilization {
			continue
		}
		if i == 0 {
			return p.Score
		}
		before := shape[i-1]
		return before.Score + (p.Score-before.Score)*(utilization-before.Utilization)/(p.Utilization-before.Utilization)
	}
	return shape[len(shape)-1].Score
}

// nonZero returns the amount of a resource in all, but for CPU and memory the amounts cpu and memory, which include the
// default requests of containers without requests.
func nonZero(cpu, memory int64, all *state.Resources, name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return cpu
	case corev1.ResourceMemory:
		return memory
	}
	return all.Get(name)
}

// isBasic reports whether a resource is CPU, memory or ephemeral storage, which count in scores even if the pod
// requests none of it.
func isBasic(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
}
