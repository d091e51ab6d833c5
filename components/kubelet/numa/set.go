// Package numa knows which CPUs and which memory of a machine are close to each
// other: its NUMA nodes.
package numa

import (
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// Most is how many NUMA nodes a Set can tell apart.
const Most = 64

// Set is a set of NUMA nodes by their numbers, which are below Most.
type Set uint64

// Of makes a set; numbers that are out of range are left out.
func Of(ids ...int) Set {
	var s Set
	for _, id := range ids {
		if id >= 0 && id < Most {
			s |= 1 << id
		}
	}
	return s
}

// Has tells whether a node is in the set.
func (s Set) Has(id int) bool { return id >= 0 && id < Most && s&(1<<id) != 0 }

// Count is how many nodes there are in the set.
func (s Set) Count() int { return bits.OnesCount64(uint64(s)) }

// IDs are the nodes, the lowest first.
func (s Set) IDs() []int {
	var out []int
	for rest := uint64(s); rest != 0; rest &= rest - 1 {
		out = append(out, bits.TrailingZeros64(rest))
	}
	return out
}

// Narrower tells whether s has fewer nodes than t or, with as many, lower ones.
func (s Set) Narrower(t Set) bool {
	if a, b := s.Count(), t.Count(); a != b {
		return a < b
	}
	return s < t
}

// String lists the nodes as cpuset files do without ranges: "0,1".
func (s Set) String() string {
	var out []string
	for _, id := range s.IDs() {
		out = append(out, strconv.Itoa(id))
	}
	return strings.Join(out, ",")
}

// Subsets gives all subsets that are not empty, those of few nodes first.
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
