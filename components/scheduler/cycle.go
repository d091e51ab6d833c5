package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
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
	// by are the checks that found nodes wanting, as bits.
	by uint64
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
	slices.Sort(parts)
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
	by      string // which one that is
	wake    framework.Event
	// early: the filter that refuses comes before that of devices, which did
	// not look at the pod therefore.
	early bool
}

type check struct {
	*framework.Check
	wake  framework.Event
	name  string
	index int // among the profile's filters
	nodes int // that it has looked at and that are not counted yet
}

func newSearch(c *framework.Cycle, set *plugins.Set, a *asked) (*search, error) {
	s := &search{c: c}
	for i, p := range set.Filter {
		if s.refused != "" && set.Devices != nil && p.Name() == set.Devices.Name() {
			s.early = true
		}
		began := a.clock()
		k, err := p.Filter(c)
		a.filter(i, p.Name(), k, err, began)
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
				s.refused, s.by, s.wake = k.Refused, p.Name(), wake
			}
			continue
		}
		s.checks = append(s.checks, check{Check: k, wake: wake, name: p.Name(), index: i})
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

// check tells why a node does not fit, nil when it does, and what found so. Pods for which room is being made on the node, and which are not
// less important, are there already; but the pod must fit without them too, for
// they may never come, and its affinity may be to one of them.
func (s *search) check(n *state.Node) ([]framework.Reason, *check) {
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
			reasons, by := s.checkBare(n)
			for _, p := range added {
				s.move(p, n, -1)
			}
			if reasons != nil {
				return reasons, by
			}
		}
	}
	return s.checkBare(n)
}

func (s *search) checkBare(n *state.Node) ([]framework.Reason, *check) {
	for i := range s.checks {
		k := &s.checks[i]
		k.nodes++
		if reasons := k.Node(n); reasons != nil {
			return reasons, k
		}
	}
	return nil, nil
}

// failure is what went wrong on any node that was checked, nil when nothing did.
// A pod of which one node makes an error has something wrong with it, that would
// go unnoticed if it went to another.
func (s *search) failure() error {
	for _, k := range s.checks {
		if k.Failed == nil {
			continue
		}
		if err := k.Failed(); err != nil {
			return fmt.Errorf("running %q filter plugin: %w", k.name, err)
		}
	}
	return nil
}

// findNode finds the best node for the pod of a cycle. It is pure but for chance,
// which decides between equals.
// A, which may be nil, learns what was asked of the plugins and how long it took.
func findNode(c *framework.Cycle, set *plugins.Set, a *asked) (*state.Node, *unfit) {
	candidates, failed := candidates(c, set, nil, a)
	if failed != nil {
		return nil, failed
	}
	return best(c, set, candidates, nil, a), nil
}

// others have a say on nodes that fit: they return which are left and note in failed
// what is wrong with the rest.
type others func(nodes []*state.Node, failed *unfit) ([]*state.Node, error)

// candidates returns the nodes that fit, in the cycle's room, or why there are none.
// More may be nil.
func candidates(c *framework.Cycle, set *plugins.Set, more others, a *asked) ([]*state.Node, *unfit) {
	if more == nil {
		more = func(nodes []*state.Node, _ *unfit) ([]*state.Node, error) { return nodes, nil }
	}
	began := time.Now()
	nodes := c.State.Nodes()
	failed := &unfit{nodes: len(nodes), reasons: map[string]int{}, wake: framework.NodeAdded}
	s, err := newSearch(c, set, a)
	if err != nil {
		a.point("PreFilter", "Error", began)
		failed.err = err
		return nil, failed
	}
	failed.search = s
	if s.refused != "" {
		a.point("PreFilter", "UnschedulableAndUnresolvable", began)
		failed.refused = s.refused
		failed.wake |= s.wake
		return nil, failed
	}
	a.point("PreFilter", "Success", began)
	began = time.Now()
	defer func() {
		// That no node fits is a success of the search for one.
		a.point("Filter", "Success", began)
		a.nodes(s)
	}()
	if len(nodes) > 0 {
		a.one(s, nodes[0])
	}
	// Room was made there, at some cost.
	if n := c.State.NominatedNode(c.Pod.Object.UID); n != nil && (s.only == nil || s.only[n.Name]) {
		if reasons, _ := s.check(n); reasons == nil {
			if left, err := more([]*state.Node{n}, &unfit{reasons: map[string]int{}}); err == nil && len(left) > 0 {
				return left, nil
			}
		}
	}
	room := c.Room
	if room == nil {
		room = &framework.Room{}
	}
	fitting := slices.Grow(room.Fitting[:0], len(nodes))
	room.Fitting = fitting
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
	if failed.err = s.failure(); failed.err != nil {
		return nil, failed
	}
	if len(fitting) > 0 {
		if fitting, failed.err = more(fitting, failed); failed.err == nil && len(fitting) > 0 {
			return fitting, nil
		}
	}
	return nil, failed
}

// try checks a node and adds it to those that fit, or to what is wrong.
func (u *unfit) try(n *state.Node, fitting []*state.Node) []*state.Node {
	reasons, by := u.search.check(n)
	if reasons == nil {
		return append(fitting, n)
	}
	u.wake |= by.wake
	u.by |= 1 << by.index
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

// plugins are the names of those because of which the pod fits nowhere.
func (u *unfit) plugins() []string {
	s := u.search
	switch {
	case s == nil || u.err != nil:
		return nil
	case s.refused != "":
		return []string{s.by}
	}
	names := slices.Clone(s.onlyBy)
	for i := range s.checks {
		if k := &s.checks[i]; u.by&(1<<k.index) != 0 && !slices.Contains(names, k.name) {
			names = append(names, k.name)
		}
	}
	return names
}

// best returns the candidate with the highest weighted sum of scores, any of
// them when several have it. Extra, which may be nil, is added to the sums.
func best(c *framework.Cycle, set *plugins.Set, candidates []*state.Node, extra map[string]int64, a *asked) *state.Node {
	if len(candidates) == 1 {
		return candidates[0]
	}
	start := time.Now()
	defer func() { a.point("Score", "Success", start) }()
	room := c.Room
	if room == nil {
		room = &framework.Room{}
	}
	room.Sums = slices.Grow(room.Sums[:0], len(candidates))[:len(candidates)]
	room.Scores = slices.Grow(room.Scores[:0], len(candidates))[:len(candidates)]
	sums, scores := room.Sums, room.Scores
	clear(sums)
	for i, p := range set.Score {
		began := a.clock()
		if !p.Score.Score(c, candidates, scores) {
			continue
		}
		a.score(i, p.Name(), len(candidates), began)
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
