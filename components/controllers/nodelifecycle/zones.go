package nodelifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	topology "k8s.io/component-helpers/node/topology"
)

// state is the health of a zone: all or most Nodes are ready (normal), too many are not ready
// (partial), or none is ready (full).
type state int

const (
	stateNormal state = iota
	statePartialDisruption
	stateFullDisruption
)

// zones groups the Nodes by zone, and decides which Nodes may get a NoExecute taint, and when. It has no clock: the
// caller passes the current time. It is not safe for concurrent use.
type zones struct {
	cfg    Config
	byName map[string]*zone
	zoneOf map[string]string // the zone of each Node
	// onNewZone, if not nil, is called for each new zone.
	onNewZone func(name string)
	// allDown is true if no Node of the cluster is ready. Then the controller itself is probably
	// disconnected, so it evicts no pods.
	allDown bool
}

// zone is a zone with its Nodes, by name.
type zone struct {
	// ready is the readiness of the Nodes that determine the zone's state.
	ready map[string]bool
	// excluded are the other Nodes.
	excluded map[string]bool
	state    state
	// waiting are the Nodes that need a taint, in order.
	waiting []string
	// next is when the next of them may get it.
	next time.Time
}

// excludeLabel is the label of Nodes that do not count for the state of their zone.
const excludeLabel = "node.kubernetes.io/exclude-disruption"

// join adds a Node to its zone, or updates its zone and readiness. A Node with excludeLabel belongs to the zone, but
// does not count as ready or unhealthy. join calls onNewZone if the zone is new. ready is the status of the Node's
// Ready condition.
func (z *zones) join(n *corev1.Node, ready corev1.ConditionStatus) {
	name := topology.GetZoneKey(n)
	if z.zoneOf == nil {
		z.zoneOf = map[string]string{}
	}
	if old, ok := z.zoneOf[n.Name]; ok && old != name {
		z.leave(n.Name)
	}
	z.zoneOf[n.Name] = name
	w := z.byName[name]
	if w == nil {
		w = &zone{ready: map[string]bool{}, excluded: map[string]bool{}}
		z.byName[name] = w
		if z.onNewZone != nil {
			z.onNewZone(name)
		}
	}
	if _, ok := n.Labels[excludeLabel]; ok {
		delete(w.ready, n.Name)
		w.excluded[n.Name] = true
		return
	}
	delete(w.excluded, n.Name)
	w.ready[n.Name] = ready == corev1.ConditionTrue
}

// leave removes a Node from its zone. A zone without Nodes is deleted.
func (z *zones) leave(node string) {
	name, ok := z.zoneOf[node]
	if !ok {
		return
	}
	delete(z.zoneOf, node)
	w := z.byName[name]
	delete(w.ready, node)
	delete(w.excluded, node)
	w.removeWaiting(node)
	if len(w.ready)+len(w.excluded) == 0 {
		delete(z.byName, name)
	}
}

// removeWaiting removes a Node from the Nodes that wait for a taint.
func (w *zone) removeWaiting(node string) {
	for i, n := range w.waiting {
		if n == node {
			w.waiting = append(w.waiting[:i:i], w.waiting[i+1:]...)
			return
		}
	}
}

// computeState returns the state of the zone: full disruption if no Node is ready, and partial disruption if at least
// three Nodes, and at least the fraction threshold of all, are not ready. Nodes with excludeLabel do not count.
func (w *zone) computeState(threshold float64) state {
	ready := 0
	for _, r := range w.ready {
		if r {
			ready++
		}
	}
	notReady := len(w.ready) - ready
	switch {
	case ready == 0 && notReady > 0:
		return stateFullDisruption
	case notReady > 2 && float64(notReady)/float64(len(w.ready)) >= threshold:
		return statePartialDisruption
	}
	return stateNormal
}

// updateStates recomputes the states of all zones. It returns the keys to enqueue: the names of all Nodes if the
// cluster has become completely unhealthy or has recovered from that, and the zones with Nodes that may get a taint
// now, with zonePrefix.
func (z *zones) updateStates() []string {
	down, up := 0, 0
	for _, w := range z.byName {
		w.state = w.computeState(z.cfg.UnhealthyZone)
		switch {
		case w.state == stateFullDisruption:
			down++
		case len(w.ready) > 0:
			up++
		}
	}
	halted := down > 0 && up == 0
	var wake []string
	if halted != z.allDown {
		z.allDown = halted
		// All taints must be removed, or added again.
		for n := range z.zoneOf {
			wake = append(wake, n)
		}
	}
	for name, w := range z.byName {
		if len(w.waiting) > 0 && !z.allDown && z.rate(w) > 0 {
			wake = append(wake, zonePrefix+name)
		}
	}
	return wake
}

// rate returns how many Nodes of the zone w may get a taint per second. It is zero if no Node of the cluster is ready,
// or if w is small and in partial disruption.
func (z *zones) rate(w *zone) float64 {
	switch {
	case z.allDown:
		return 0
	case w.state == statePartialDisruption && len(w.ready) > z.cfg.LargeCluster:
		return z.cfg.SecondaryEvictionRate
	case w.state == statePartialDisruption:
		return 0
	}
	return z.cfg.EvictionRate
}

// queueTaint queues a Node for a NoExecute taint, unless it is queued already. It returns the name of its zone, or ""
// for an unknown Node.
func (z *zones) queueTaint(node string) (zoneName string) {
	name, ok := z.zoneOf[node]
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

// unqueue removes a Node from the queue of its zone, because it does not need a taint any more.
func (z *zones) unqueue(node string) {
	if name, ok := z.zoneOf[node]; ok {
		z.byName[name].removeWaiting(node)
	}
}

// pop removes the next waiting Node of a zone and returns it if it may get its taint now, or else "". again is the
// delay after which the caller should call pop again, or zero if no Node waits or evictions are stopped.
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

// requeue queues a Node again whose taint could not be added. The next Node of the zone may get its
// taint immediately.
func (z *zones) requeue(node string) {
	name, ok := z.zoneOf[node]
	if !ok {
		return
	}
	w := z.byName[name]
	w.removeWaiting(node)
	w.waiting = append(w.waiting, node)
	w.next = time.Time{}
}
