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

// fitError is the result of an attempt that found no node for a pod: the reasons for events and conditions, and what
// may make the pod schedulable later.
type fitError struct {
	nodes   int
	reasons map[string]int  // number of nodes by reason
	events  framework.Event // events that may make the pod schedulable
	err     error           // error of a plugin or extender; the reasons are then ignored
	// resolvable are the nodes on which preemption may help. search is the search that rejected them;
	// it is nil if the attempt failed before.
	resolvable []*state.Node
	search     *search
	// refused is the reason of a filter that rejected all nodes; reasons is then empty.
	refused string
	// rejectedBy is a bit set of the filters that rejected nodes.
	rejectedBy uint64
	// preemption is the reason why preemption does not help. It is empty if preemption helps or was
	// not tried.
	preemption string
}

// Error returns the message for the pod's FailedScheduling event and PodScheduled condition, in upstream's words.
func (u *fitError) Error() string {
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

// fitText returns the message "0/3 nodes are available: 1 reason A, 2 reason B." in upstream's words. nodes is the
// number of nodes that were considered; all were rejected. reasons maps each reason to the number of nodes that were
// rejected for it. If nodes is zero, the message is "no nodes available to schedule pods".
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

// search contains what the filters of a profile have returned for the pod that is being scheduled. It evaluates nodes
// one by one.
type search struct {
	c      *framework.Cycle
	checks []check
	// only are the nodes that need to be checked, and onlyBy are the plugins that excluded the
	// others. If nil, all nodes must be checked.
	only   map[string]bool
	onlyBy []string
	// refused is the reason of the first filter that rejected all nodes, or empty if none did.
	refused string
	by      string          // name of that filter
	events  framework.Event // events after which that filter may accept the pod
	// refusedEarly is true if a filter that precedes DynamicResources in the profile rejected all
	// nodes. Upstream does not run DynamicResources then, which changes the preemption message.
	refusedEarly bool
}

// check is the result of one filter for the pod that is being scheduled, with the properties of the filter.
type check struct {
	*framework.Check
	events framework.Event
	name   string
	index  int // index in the profile's filters
	nodes  int // number of evaluated nodes that are not in the metrics yet
}

// newSearch runs the filters of a profile for the pod that is being scheduled. It returns an error if a filter
// considers the pod invalid. a records plugin metrics and may be nil.
func newSearch(c *framework.Cycle, set *plugins.Set, a *pluginMetrics) (*search, error) {
	s := &search{c: c}
	for i, p := range set.Filter {
		if s.refused != "" && set.Devices != nil && p.Name() == set.Devices.Name() {
			s.refusedEarly = true
		}
		began := a.startTime()
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
				s.refused, s.by, s.events = k.Refused, p.Name(), wake
			}
			continue
		}
		s.checks = append(s.checks, check{Check: k, events: wake, name: p.Name(), index: i})
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

// move adds the pod p to the node n if by is 1, or removes it from n if by is -1, in the State and in the filters. It
// is used to evaluate preemption and nominated pods. The caller must revert it before the cycle ends.
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

// check returns the reasons why the pod does not fit on a node and the filter that rejected it, or nil if it fits. Pods
// that are nominated to the node and have at least the same priority count as if they ran there. The pod must also fit
// without them, because they may never be bound, and because its affinity may depend on them.
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

// checkBare does the same as check, but ignores the pods that are nominated to the node.
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

// failure returns an error that a filter has encountered on any evaluated node, or nil. Such an error means that the
// pod is invalid. It must be reported even if another node fits, because it would stay unnoticed otherwise.
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

// findNode returns the best node for the pod that is being scheduled, without extenders. It has no side effects.
// Between nodes with the same score it chooses randomly. a records plugin metrics and may be nil.
func findNode(c *framework.Cycle, set *plugins.Set, a *pluginMetrics) (*state.Node, *fitError) {
	candidates, failed := candidates(c, set, nil, a)
	if failed != nil {
		return nil, failed
	}
	return best(c, set, candidates, nil, a), nil
}

// nodeFilter is a function that filters nodes after the plugins have accepted them, such as the filter requests to
// extenders. It returns the remaining nodes, and adds the reasons for the others to failed.
type nodeFilter func(nodes []*state.Node, failed *fitError) ([]*state.Node, error)

// candidates returns the nodes that fit the pod that is being scheduled, or a fitError if there are none. If the pod
// is nominated to a node that fits, it returns only that node, because victims were preempted there. more filters the
// nodes further and may be nil, and so may a, which records plugin metrics. The result uses the cycle's Buffers, so it
// is valid until the next cycle.
func candidates(c *framework.Cycle, set *plugins.Set, more nodeFilter, a *pluginMetrics) ([]*state.Node, *fitError) {
	if more == nil {
		more = func(nodes []*state.Node, _ *fitError) ([]*state.Node, error) { return nodes, nil }
	}
	began := time.Now()
	nodes := c.State.Nodes()
	failed := &fitError{nodes: len(nodes), reasons: map[string]int{}, events: framework.NodeAdded}
	s, err := newSearch(c, set, a)
	if err != nil {
		a.observePoint("PreFilter", "Error", began)
		failed.err = err
		return nil, failed
	}
	failed.search = s
	if s.refused != "" {
		a.observePoint("PreFilter", "UnschedulableAndUnresolvable", began)
		failed.refused = s.refused
		failed.events |= s.events
		return nil, failed
	}
	a.observePoint("PreFilter", "Success", began)
	began = time.Now()
	defer func() {
		// A search that finds no node counts as a success.
		a.observePoint("Filter", "Success", began)
		a.nodes(s)
	}()
	if len(nodes) > 0 {
		a.sampleNode(s, nodes[0])
	}
	// Pods were preempted on the nominated node, so prefer it.
	if n := c.State.NominatedNode(c.Pod.Object.UID); n != nil && (s.only == nil || s.only[n.Name]) {
		if reasons, _ := s.check(n); reasons == nil {
			if left, err := more([]*state.Node{n}, &fitError{reasons: map[string]int{}}); err == nil && len(left) > 0 {
				return left, nil
			}
		}
	}
	room := c.Buffers
	if room == nil {
		room = &framework.Buffers{}
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

// try checks whether the pod fits on the node n. If it does, try appends n to fitting and returns the result.
// Otherwise it adds the reasons to u and returns fitting unchanged.
func (u *fitError) try(n *state.Node, fitting []*state.Node) []*state.Node {
	reasons, by := u.search.check(n)
	if reasons == nil {
		return append(fitting, n)
	}
	u.events |= by.events
	u.rejectedBy |= 1 << by.index
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

// plugins returns the names of the plugins that made the pod unschedulable, for metrics. It returns none if an error
// occurred.
func (u *fitError) plugins() []string {
	s := u.search
	switch {
	case s == nil || u.err != nil:
		return nil
	case s.refused != "":
		return []string{s.by}
	}
	names := slices.Clone(s.onlyBy)
	for i := range s.checks {
		if k := &s.checks[i]; u.rejectedBy&(1<<k.index) != 0 && !slices.Contains(names, k.name) {
			names = append(names, k.name)
		}
	}
	return names
}

// best returns the candidate with the highest weighted sum of scores. Between equal candidates it chooses randomly.
// extra contains the scores of extenders by node name, which are added to the sums; it may be nil. a records plugin
// metrics and may be nil.
func best(c *framework.Cycle, set *plugins.Set, candidates []*state.Node, extra map[string]int64, a *pluginMetrics) *state.Node {
	if len(candidates) == 1 {
		return candidates[0]
	}
	start := time.Now()
	defer func() { a.observePoint("Score", "Success", start) }()
	room := c.Buffers
	if room == nil {
		room = &framework.Buffers{}
	}
	room.Sums = slices.Grow(room.Sums[:0], len(candidates))[:len(candidates)]
	room.Scores = slices.Grow(room.Scores[:0], len(candidates))[:len(candidates)]
	sums, scores := room.Sums, room.Scores
	clear(sums)
	for i, p := range set.Score {
		began := a.startTime()
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
