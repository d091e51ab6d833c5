// Package numa describes the NUMA nodes of a machine: which CPUs and memory are close to each
// other.
package numa

import (
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// MaxNodes is the maximum number of NUMA nodes that a Set can contain.
const MaxNodes = 64

// Set is a set of NUMA nodes, whose IDs are below MaxNodes. The zero value is the empty set.
type Set uint64

// Of returns the set of the nodes with these IDs. IDs that are out of range are ignored.
func Of(ids ...int) Set {
	var s Set
	for _, id := range ids {
		if id >= 0 && id < MaxNodes {
			s |= 1 << id
		}
	}
	return s
}

// Has reports whether the node with the ID is in the set.
func (s Set) Has(id int) bool { return id >= 0 && id < MaxNodes && s&(1<<id) != 0 }

// Count returns the number of nodes in the set.
func (s Set) Count() int { return bits.OnesCount64(uint64(s)) }

// IDs returns the IDs of the nodes in ascending order.
func (s Set) IDs() []int {
	var out []int
	for rest := uint64(s); rest != 0; rest &= rest - 1 {
		out = append(out, bits.TrailingZeros64(rest))
	}
	return out
}

// Narrower reports whether s has fewer nodes than t or, with the same number of nodes, lower ones.
func (s Set) Narrower(t Set) bool {
	if a, b := s.Count(), t.Count(); a != b {
		return a < b
	}
	return s < t
}

// String returns the node IDs as a comma-separated list without ranges, such as "0,1", as the kernel expects
// it for cpuset.mems.
func (s Set) String() string {
	var out []string
	for _, id := range s.IDs() {
		out = append(out, strconv.Itoa(id))
	}
	return strings.Join(out, ",")
}

// Subsets iterates over all non-empty subsets, the smallest first.
func (s Set) Subsets() iter.Seq[Set] {
	return func(yield func(Set) bool) {
		ids := s.IDs()
		var choose func(from, left int, got Set) bool
		choose = func(from, left int, got Set) bool {
			if left == 0 {
				return yield(got)
			}
			for i := from; i+left <= len(ids); i++ {
				if !choose(i+1, left-1, got|Of(ids[i])) {
					return false
				}
			}
			return true
		}
		for n := 1; n <= len(ids); n++ {
			if !choose(0, n, 0) {
				return
			}
		}
	}
}
