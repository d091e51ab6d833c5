package nodelifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	topology "k8s.io/component-helpers/node/topology"
)

// state of a zone.
type state int

const (
	normal state = iota
	partial
	full
)

// zones tells which Nodes may get a NoExecute taint, and when. It has no locks
// and no clock of its own.
type zones struct {
	cfg    Config
	byName map[string]*zone
	of     map[string]string // zone of each Node
	// made, unless nil, is told of each zone that there has not been before.
	made func(name string)
	// halted says that no Node at all is ready: then it is more likely us who
	// are cut off, and nothing is evicted.
	halted bool
}

type zone struct {
	// ready tells of the Nodes by which the zone is judged whether they are.
	ready map[string]bool
	// excluded are the others.
	excluded map[string]bool
	state    state
	// waiting are the Nodes that want a taint, the first first.
	waiting []string
	// next is when the next may have it.
	next time.Time
}

// exclusion is the label of Nodes that come and go without telling anything of their
// zone.
const exclusion = "node.kubernetes.io/exclude-disruption"

// join notes a Node's zone and readiness.
func (z *zones) join(n *corev1.Node, ready corev1.ConditionStatus) {
	name := topology.GetZoneKey(n)
	if z.of == nil {
		z.of = map[string]string{}
	}
	if old, ok := z.of[n.Name]; ok && old != name {
		z.leave(n.Name)
	}
	z.of[n.Name] = name
	w := z.byName[name]
	if w == nil {
		w = &zone{ready: map[string]bool{}, excluded: map[string]bool{}}
		z.byName[name] = w
		if z.made != nil {
			z.made(name)
		}
	}
	if _, ok := n.Labels[exclusion]; ok {
		delete(w.ready, n.Name)
		w.excluded[n.Name] = true
		return
	}
	delete(w.excluded, n.Name)
	w.ready[n.Name] = ready == corev1.ConditionTrue
}

func (z *zones) leave(node string) {
	name, ok := z.of[node]
	if !ok {
		return
	}
	delete(z.of, node)
	w := z.byName[name]
	delete(w.ready, node)
	delete(w.excluded, node)
	w.drop(node)
	if len(w.ready)+len(w.excluded) == 0 {
		delete(z.byName, name)
	}
}

func (w *zone) drop(node string) {
	for i, n := range w.waiting {
		if n == node {
			w.waiting = append(w.waiting[:i:i], w.waiting[i+1:]...)
			return
		}
	}
}

// assess tells the state of a zone.
func (w *zone) assess(threshold float64) state {
	ready := 0
	for _, r := range w.ready {
		if r {
			ready++
		}
	}
	notReady := len(w.ready) - ready
	switch {
	case ready == 0 && notReady > 0:
		return full
	case notReady > 2 && float64(notReady)/float64(len(w.ready)) >= threshold:
		return partial
	}
	return normal
}

// judge assesses all zones and returns keys of those whose Nodes must be looked
// at again, Nodes by name and zones by name and prefix.
func (z *zones) judge() []string {
	down, up := 0, 0
	for _, w := range z.byName {
		w.state = w.assess(z.cfg.UnhealthyZone)
		switch {
		case w.state == full:
			down++
		case len(w.ready) > 0:
			up++
		}
	}
	halted := down > 0 && up == 0
	var wake []string
	if halted != z.halted {
		z.halted = halted
		// Taints are taken back, or wanted again.
		for n := range z.of {
			wake = append(wake, n)
		}
	}
	for name, w := range z.byName {
		if len(w.waiting) > 0 && !z.halted && z.rate(w) > 0 {
			wake = append(wake, zonePrefix+name)
		}
	}
	return wake
}

// rate is how many Nodes of w may get a taint a second.
func (z *zones) rate(w *zone) float64 {
	switch {
	case z.halted:
		return 0
	case w.state == partial && len(w.ready) > z.cfg.LargeCluster:
		return z.cfg.SecondaryEvictionRate
	case w.state == partial:
		return 0
	}
	return z.cfg.EvictionRate
}

// want queues a Node for its taint.
func (z *zones) want(node string) (zoneName string) {
	name, ok := z.of[node]
	if !ok {
		return ""
	}
	w := z.byName[name]
	if slices.Contains(w.waiting, node) {
		return name
	}
	w.waiting = append(w.waiting, node)
	return name
}

// unwant takes a Node off the queue.
func (z *zones) unwant(node string) {
	if name, ok := z.of[node]; ok {
		z.byName[name].drop(node)
	}
}

// pop returns the Node of a zone that may have its taint now. Without one, it
// returns in how long to ask again, zero for not before something changes.
func (z *zones) pop(name string, now time.Time) (node string, again time.Duration) {
	w := z.byName[name]
	if w == nil || len(w.waiting) == 0 {
		return "", 0
	}
	rate := z.rate(w)
	if rate <= 0 {
		return "", 0
	}
	if left := w.next.Sub(now); left > 0 {
		return "", left
	}
	node = w.waiting[0]
	w.waiting = w.waiting[1:]
	gap := time.Duration(float64(time.Second) / rate)
	w.next = now.Add(gap)
	if len(w.waiting) > 0 {
		again = gap
	}
	return node, again
}

// requeue puts a Node back that could not be given its taint; the next may have
// one now.
func (z *zones) requeue(node string) {
	name, ok := z.of[node]
	if !ok {
		return
	}
	w := z.byName[name]
	w.drop(node)
	w.waiting = append(w.waiting, node)
	w.next = time.Time{}
}
