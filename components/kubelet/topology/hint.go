// Package topology brings together what the managers of CPUs, memory and
// devices say about the NUMA nodes on which a container would be well placed,
// and admits pods by it: the topology manager.
//
// https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/
package topology

import (
	"hyperkube/components/kubelet/numa"
)

// Hint is a set of NUMA nodes on which a request can be met.
type Hint struct {
	// Nodes is 0 when it is all the same.
	Nodes numa.Set
	// Preferred: no fewer nodes could ever do.
	Preferred bool
}

// Hints are those for each resource of a container. A resource that is not in
// it, or whose list is nil, has no wishes; an empty list says that it cannot be
// given at all.
type Hints map[string][]Hint

// merger finds the hint that suits all resources best.
type merger struct {
	all     numa.Set
	machine numa.Machine
	// closest prefers nodes that are close to each other.
	closest bool
	// aim is how many nodes a hint that is not preferred should have: as many as
	// the resource that needs most of them does.
	aim int
}

// merge tries all combinations of one hint of each resource.
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
			best = m.better(best, m.together(chosen))
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

// together is what one hint of each resource have in common. It is preferred
// when each of them is and all mean the same nodes.
func (m *merger) together(hints []Hint) Hint {
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

// better returns the better of the best one until now, which may be nil, and
// another.
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

// narrower tells whether a goes before b.
func (m *merger) narrower(a, b numa.Set) bool {
	if !m.closest || a.Count() != b.Count() {
		return a.Narrower(b)
	}
	if x, y := m.machine.Distance(a), m.machine.Distance(b); x != y {
		return x < y
	}
	return a < b
}
