package scheduler

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
)

// unfit says why no node takes a pod.
type unfit struct {
	nodes   int
	reasons map[string]int // by how many nodes
	wake    framework.Event
	err     error // the pod itself is at fault
}

// Error is the message of events and conditions.
func (u *unfit) Error() string {
	switch {
	case u.err != nil:
		return u.err.Error()
	case u.nodes == 0:
		return "no nodes available to schedule pods"
	}
	parts := make([]string, 0, len(u.reasons))
	for text, count := range u.reasons {
		parts = append(parts, fmt.Sprintf("%d %s", count, text))
	}
	sort.Strings(parts)
	return fmt.Sprintf("0/%d nodes are available: %s.", u.nodes, strings.Join(parts, ", "))
}

// place finds the best node for the pod of a cycle. It is pure but for chance,
// which decides between equals.
func findNode(c *framework.Cycle, set *plugins.Set) (*state.Node, *unfit) {
	nodes := c.State.Nodes()
	failed := &unfit{nodes: len(nodes), reasons: map[string]int{}, wake: framework.NodeAdded}
	type check struct {
		fit  framework.Check
		wake framework.Event
	}
	var checks []check
	for _, p := range set.Filter {
		fit, err := p.Filter(c)
		if err != nil {
			failed.err = fmt.Errorf("%s: %w", p.Name(), err)
			return nil, failed
		}
		if fit == nil {
			continue
		}
		wake := ^framework.Event(0)
		if w, ok := p.(framework.Waker); ok {
			wake = w.Wakes()
		}
		checks = append(checks, check{fit, wake})
	}
	candidates := make([]*state.Node, 0, len(nodes))
next:
	for _, n := range nodes {
		for _, k := range checks {
			if reasons := k.fit(n); reasons != nil {
				failed.wake |= k.wake
				for _, r := range reasons {
					failed.reasons[r.Text]++
				}
				continue next
			}
		}
		candidates = append(candidates, n)
	}
	switch len(candidates) {
	case 0:
		return nil, failed
	case 1:
		return candidates[0], nil
	}
	return best(c, set, candidates), nil
}

// best returns the candidate with the highest weighted sum of scores, any of
// them when several have it.
func best(c *framework.Cycle, set *plugins.Set, candidates []*state.Node) *state.Node {
	sums := make([]int64, len(candidates))
	scores := make([]int64, len(candidates))
	for _, p := range set.Score {
		if !p.Score.Score(c, candidates, scores) {
			continue
		}
		for i, v := range scores {
			sums[i] += v * p.Weight
		}
	}
	chosen, equals := 0, 1
	for i := 1; i < len(sums); i++ {
		switch {
		case sums[i] > sums[chosen]:
			chosen, equals = i, 1
		case sums[i] == sums[chosen]:
			if equals++; rand.IntN(equals) == 0 {
				chosen = i
			}
		}
	}
	return candidates[chosen]
}
