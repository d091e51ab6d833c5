package plugins

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// Strategy scores nodes by how much of their resources would be used with the
// pod there. The zero value is upstream's default: the less of CPU and memory,
// the better.
// https://kubernetes.io/docs/concepts/scheduling-eviction/resource-bin-packing/
type Strategy struct {
	// Most prefers full nodes. It is not looked at with a Shape.
	Most bool
	// Shape tells the score for a utilization; in between, lines are drawn.
	// Nil: a line.
	Shape []Point
	// Resources are weighed; nil means CPU and memory alike.
	Resources []WeightedResource
}

// Point of a Shape.
type Point struct {
	// Utilization in percent; it rises from point to point.
	Utilization int64
	// Score from 0 to framework.MaxScore.
	Score int64
}

// WeightedResource is a resource and how much it counts.
type WeightedResource struct {
	Name   corev1.ResourceName
	Weight int64
}

var alike = []WeightedResource{{corev1.ResourceCPU, 1}, {corev1.ResourceMemory, 1}}

func (s *Strategy) score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	resources := s.Resources
	if resources == nil {
		resources = alike
	}
	for i, n := range nodes {
		var sum, weights int64
		for _, r := range resources {
			have := n.Allocatable.Get(r.Name)
			want := assumed(c.Pod.AssumedCPU, c.Pod.AssumedMemory, &c.Pod.Requests, r.Name)
			// A resource that the node lacks, or one of devices that the
			// pod does not ask for, says nothing.
			if have == 0 || want == 0 && !basic(r.Name) {
				continue
			}
			used := assumed(n.AssumedCPU, n.AssumedMemory, &n.Requested, r.Name) + want
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

// onShape returns the score at a utilization.
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

// assumed is an amount with what is assumed of containers that request nothing.
func assumed(cpu, memory int64, all *state.Resources, name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return cpu
	case corev1.ResourceMemory:
		return memory
	}
	return all.Get(name)
}

func basic(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
}
