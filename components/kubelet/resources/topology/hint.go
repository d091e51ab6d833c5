// Package topology implements the topology manager: it merges the topology hints of the CPU, memory
// and device managers, and admits pods accordingly.
//
// https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/
package topology

import (
	"hyperkube/components/kubelet/resources/numa"
)

// Hint is a set of NUMA nodes from which a request for a resource can be satisfied.
type Hint struct {
	// Nodes is the empty set if the nodes do not matter.
	Nodes numa.Set
	// Preferred means that no smaller set of nodes could satisfy the request.
	Preferred bool
}

// Hints are the hints by resource. A resource that is missing or has a nil list has no preference.
// An empty list means that the request cannot be satisfied.
type Hints map[string][]Hint

// merger finds the NUMA nodes that suit all resources of a container or pod best, by combining the hints of the
// resources.
type merger struct {
	all     numa.Set
	machine numa.Machine
	// closest prefers nodes with a small distance to each other (option prefer-closest-numa-nodes).
	closest bool
	// aim is the target number of nodes for hints that are not preferred: the largest of the
	// minimum node counts of all resources.
	aim int
}

// merge combines one hint of each resource in all possible ways, and returns the best combination: the nodes that
// are in all of its hints. lists are the hints by resource. If no combination has a common node, it returns all
// nodes as a hint that is not preferred.
func (m *merger) merge(lists [][]Hint) Hint {
	m.aim = 0
	for _, list := range lists {
		least := 0
		for _, h := range list {
			if n := h.Nodes.Count(); h.Nodes != 0 && (least == 0 || n < least) {
				least = n
			}
		}
		m.aim = max(m.aim, least)
	}
	var best *Hint
	chosen := make([]Hint, len(lists))
	var choose func(i int)
	choose = func(i int) {
		if i == len(lists) {
			best = m.better(best, m.intersect(chosen))
			return
		}
		for _, h := range lists[i] {
			chosen[i] = h
			choose(i + 1)
		}
	}
	choose(0)
	if best == nil {
		return Hint{Nodes: m.all}
	}
	return *best
}

// intersect returns the nodes that are in all hints, of which there is one per resource. The result is preferred if
// all hints are preferred and have the same nodes. Hints without nodes are ignored, because the nodes do not matter
// for their resource.
func (m *merger) intersect(hints []Hint) Hint {
	out := Hint{Nodes: m.all, Preferred: true}
	var first numa.Set
	for _, h := range hints {
		if h.Nodes != 0 {
			if first == 0 {
				first = h.Nodes
			}
			if h.Nodes != first {
				out.Preferred = false
			}
			out.Nodes &= h.Nodes
		}
		if !h.Preferred {
			out.Preferred = false
		}
	}
	return out
}

// better returns the better one of now, the best hint so far or nil, and other. A preferred hint is better than
// another. Of two preferred hints, the narrower one is better; of two others, the one whose number of nodes is
// closer to m.aim, preferably not above it. A hint with an empty set of nodes is never better.
func (m *merger) better(now *Hint, other Hint) *Hint {
	if other.Nodes == 0 {
		return now
	}
	take := func(yes bool) *Hint {
		if yes {
			return &other
		}
		return now
	}
	if now == nil {
		return &other
	}
	if now.Preferred != other.Preferred {
		return take(other.Preferred)
	}
	if now.Preferred {
		return take(m.narrower(other.Nodes, now.Nodes))
	}
	have, would := now.Nodes.Count(), other.Nodes.Count()
	switch {
	case have > m.aim:
		return take(m.narrower(other.Nodes, now.Nodes))
	case have == m.aim:
		return take(would == m.aim && m.narrower(other.Nodes, now.Nodes))
	case would > m.aim:
		return now
	case would != have:
		return take(would > have)
	}
	return take(m.narrower(other.Nodes, now.Nodes))
}

// narrower reports whether a has fewer nodes than b or, with the same number, is closer together if closest
// is set, or has lower nodes.
func (m *merger) narrower(a, b numa.Set) bool {
	if !m.closest || a.Count() != b.Count() {
		return a.Narrower(b)
	}
	if x, y := m.machine.Distance(a), m.machine.Distance(b); x != y {
		return x < y
	}
	return a < b
}
