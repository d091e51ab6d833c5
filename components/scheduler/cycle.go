package scheduler

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"time"

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
	// resolvable are the nodes where evictions may help, found by search.
	resolvable []*state.Node
	search     *search
	// refused says why no node takes the pod for now; reasons is empty then.
	refused string
	// preemption says why no eviction helps, "" when one does or none was
	// thought of.
	preemption string
}

// Error is the message of events and conditions.
func (u *unfit) Error() string {
	if u.err != nil {
		return u.err.Error()
	}
	text := fitText(u.nodes, u.reasons)
	if u.refused != "" && u.nodes > 0 {
		text = fmt.Sprintf("0/%d nodes are available: %s.", u.nodes, u.refused)
	}
	if u.preemption != "" {
		text += " " + u.preemption
	}
	return text
}

func fitText(nodes int, reasons map[string]int) string {
	if nodes == 0 {
		return "no nodes available to schedule pods"
	}
	parts := make([]string, 0, len(reasons))
	for text, count := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", count, text))
	}
	sort.Strings(parts)
	return fmt.Sprintf("0/%d nodes are available: %s.", nodes, strings.Join(parts, ", "))
}

// search is what the filters of a profile make of the pod of a cycle.
type search struct {
	c      *framework.Cycle
	checks []check
	// only are the nodes worth checking, and onlyBy the plugins that say so;
	// nil means all.
	only   map[string]bool
	onlyBy []string
	// refused is of the first filter that refuses all nodes, with its wake.
	refused string
	wake    framework.Event
	// early: the filter that refuses comes before that of devices, which did
	// not look at the pod therefore.
	early bool
}

type check struct {
	*framework.Check
	wake framework.Event
}

func newSearch(c *framework.Cycle, set *plugins.Set) (*search, error) {
	s := &search{c: c}
	for _, p := range set.Filter {
		if s.refused != "" && set.Devices != nil && p.Name() == set.Devices.Name() {
			s.early = true
		}
		k, err := p.Filter(c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name(), err)
		}
		if k == nil {
			continue
		}
		wake := framework.AnyEvent
		if w, ok := p.(framework.Waker); ok {
			wake = w.Wakes()
		}
		if k.Refused != "" {
			if s.refused == "" {
				s.refused, s.wake = k.Refused, wake
			}
			continue
		}
		s.checks = append(s.checks, check{k, wake})
		if k.Only != nil {
			s.onlyBy = append(s.onlyBy, p.Name())
			if s.only == nil {
				s.only = map[string]bool{}
				for name := range k.Only {
					s.only[name] = true
				}
			}
			for name := range s.only {
				if !k.Only[name] {
					delete(s.only, name)
				}
			}
		}
	}
	return s, nil
}

// move puts a pod on a node (by is 1) or takes it off (by is -1), to see what
// would be. Whoever moves puts back.
func (s *search) move(p *state.Pod, n *state.Node, by int64) {
	if by > 0 {
		s.c.State.SetPod(p, n.Name)
	} else {
		s.c.State.RemovePod(p.Object.UID)
	}
	for _, k := range s.checks {
		if k.Moved != nil {
			k.Moved(p, n, by)
		}
	}
}

// check tells why a node does not fit, nil when it does, and which events may
// change that. Pods for which room is being made on the node, and which are not
// less important, are there already; but the pod must fit without them too, for
// they may never come, and its affinity may be to one of them.
func (s *search) check(n *state.Node) ([]framework.Reason, framework.Event) {
	if len(n.Nominated) > 0 {
		var added []*state.Pod
		for _, p := range n.Nominated {
			if p.Priority >= s.c.Pod.Priority && p.Object.UID != s.c.Pod.Object.UID && p.NodeName() == "" {
				added = append(added, p)
			}
		}
		if len(added) > 0 {
			for _, p := range added {
				s.move(p, n, 1)
			}
			reasons, wake := s.checkBare(n)
			for _, p := range added {
				s.move(p, n, -1)
			}
			if reasons != nil {
				return reasons, wake
			}
		}
	}
	return s.checkBare(n)
}

func (s *search) checkBare(n *state.Node) ([]framework.Reason, framework.Event) {
	for i := range s.checks {
		if reasons := s.checks[i].Node(n); reasons != nil {
			return reasons, s.checks[i].wake
		}
	}
	return nil, 0
}

// findNode finds the best node for the pod of a cycle. It is pure but for chance,
// which decides between equals.
// Told, which may be nil, learns how long the extension points took.
func findNode(c *framework.Cycle, set *plugins.Set, told func(point, status string, began time.Time)) (*state.Node, *unfit) {
	if told == nil {
		told = func(string, string, time.Time) {}
	}
	began := time.Now()
	candidates, failed := candidates(c, set)
	if failed != nil {
		told("Filter", "Unschedulable", began)
		return nil, failed
	}
	told("Filter", "Success", began)
	if len(candidates) == 1 {
		return candidates[0], nil
	}
	began = time.Now()
	n := best(c, set, candidates, nil)
	told("Score", "Success", began)
	return n, nil
}

// candidates returns the nodes that fit, or why there are none.
func candidates(c *framework.Cycle, set *plugins.Set) ([]*state.Node, *unfit) {
	nodes := c.State.Nodes()
	failed := &unfit{nodes: len(nodes), reasons: map[string]int{}, wake: framework.NodeAdded}
	s, err := newSearch(c, set)
	if err != nil {
		failed.err, failed.wake = err, 0
		return nil, failed
	}
	failed.search = s
	if s.refused != "" {
		failed.refused = s.refused
		failed.wake |= s.wake
		return nil, failed
	}
	// Room was made there, at some cost.
	if n := c.State.NominatedNode(c.Pod.Object.UID); n != nil && (s.only == nil || s.only[n.Name]) {
		if reasons, _ := s.check(n); reasons == nil {
			return []*state.Node{n}, nil
		}
	}
	fitting := make([]*state.Node, 0, len(nodes))
	if s.only == nil {
		for _, n := range nodes {
			fitting = failed.try(n, fitting)
		}
	} else {
		checked := 0
		for name := range s.only {
			if n := c.State.Node(name); n != nil {
				checked++
				fitting = failed.try(n, fitting)
			}
		}
		if checked < len(nodes) {
			failed.reasons[fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", s.onlyBy)] += len(nodes) - checked
		}
	}
	if len(fitting) == 0 {
		return nil, failed
	}
	return fitting, nil
}

// try checks a node and adds it to those that fit, or to what is wrong.
func (u *unfit) try(n *state.Node, fitting []*state.Node) []*state.Node {
	reasons, wake := u.search.check(n)
	if reasons == nil {
		return append(fitting, n)
	}
	u.wake |= wake
	resolvable := true
	for _, r := range reasons {
		u.reasons[r.Text]++
		resolvable = resolvable && !r.Unresolvable
	}
	if resolvable {
		u.resolvable = append(u.resolvable, n)
	}
	return fitting
}

// best returns the candidate with the highest weighted sum of scores, any of
// them when several have it. Extra, which may be nil, is added to the sums.
func best(c *framework.Cycle, set *plugins.Set, candidates []*state.Node, extra map[string]int64) *state.Node {
	if len(candidates) == 1 {
		return candidates[0]
	}
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
	for i, n := range candidates {
		sums[i] += extra[n.Name]
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
