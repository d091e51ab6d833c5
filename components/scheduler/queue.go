package scheduler

import (
	"container/heap"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/internal/podrefs"
)

const (
	// The backoff by default.
	initialBackoff = time.Second
	maxBackoff     = 10 * time.Second
	// maxWaiting is after how long a pod is tried again though nothing has
	// happened that seems to help.
	maxWaiting = 5 * time.Minute
)

// place is where in the queue a pod is.
type place uint8

const (
	active  place = iota // to be tried, in order
	backoff              // to be tried when its time has come, or nothing else is
	waiting              // until something happens that may help
	gated                // until its gates are gone
	tried                // taken out, being placed
	places
)

// item is one pod without a node.
type item struct {
	pod      *corev1.Pod
	added    time.Time
	first    time.Time // of the attempts
	attempts int
	place    place
	// wake are the events that may help a waiting pod.
	wake  framework.Event
	ready time.Time // end of the backoff
	// failing: the last attempt met an error, after which the backoff is waited
	// out.
	failing bool
	// latest is when a waiting pod is tried again at the latest.
	latest time.Time
	// held: it stays waiting, whatever happens, until others have been
	// evicted for it; missed is what happened meanwhile.
	held   bool
	missed string
	// blamed are the names of the plugins because of which it has no node.
	blamed []string
	// flushed: it is tried because it has waited for long.
	flushed bool
	index   int // in its heap
}

// queue holds the pods without a node. It is pure: the clock is an argument.
type queue struct {
	items map[types.UID]*item
	heaps [places]*itemHeap // nil for places without an order
	// counts are how many are in each place.
	counts [places]int
	// came, unless nil, is told of each item that comes to a place, and why.
	came func(to place, cause string)
	// blamed, unless nil, is told by how many more or less pods a plugin is to
	// blame for that they have no node.
	blamed func(plugin, profile string, by float64)
	// initial and most bound how long a pod that could not be placed waits at
	// least before it is tried again.
	initial, most time.Duration
}

func newQueue() *queue {
	q := &queue{items: map[types.UID]*item{}, initial: initialBackoff, most: maxBackoff}
	q.heaps[active] = &itemHeap{less: func(a, b *item) bool {
		if pa, pb := corev1helpers.PodPriority(a.pod), corev1helpers.PodPriority(b.pod); pa != pb {
			return pa > pb
		}
		return a.added.Before(b.added)
	}}
	inOrder := q.heaps[active].less
	q.heaps[backoff] = &itemHeap{less: func(a, b *item) bool {
		// Those that met errors are the last, for they are not tried early; of
		// the others whose backoffs end in the same second, the more important
		// comes first.
		if a.failing || b.failing {
			return !a.failing || b.failing && a.ready.Before(b.ready)
		}
		if x, y := a.ready.Truncate(time.Second), b.ready.Truncate(time.Second); !x.Equal(y) {
			return x.Before(y)
		}
		return inOrder(a, b)
	}}
	q.heaps[waiting] = &itemHeap{less: func(a, b *item) bool { return a.latest.Before(b.latest) }}
	return q
}

// set adds a pod, or takes notice of its change: one that was turned down is
// tried again when it changed in what a decision depends on.
func (q *queue) set(pod *corev1.Pod, isGated bool, now time.Time) {
	it := q.items[pod.UID]
	if it == nil {
		it = &item{pod: pod, added: now, place: tried}
		q.items[pod.UID] = it
		q.counts[tried]++
		q.put(it, placeOf(isGated), "PodAdd")
		return
	}
	old := it.pod
	it.pod = pod
	switch {
	case it.place == tried:
		// It is on its way to a node.
	case isGated && it.place != gated:
		q.put(it, gated, "PodUpdate")
	case it.place == gated && !isGated:
		it.added = now
		q.put(it, active, "PodUpdate")
	case it.place == waiting && differ(old, pod):
		q.retry(it, now, "PodUpdate")
	case it.place == active:
		heap.Fix(q.heaps[active], it.index)
	}
}

// differ tells whether a pod without a node has changed in what decisions
// depend on.
func differ(a, b *corev1.Pod) bool {
	if a.Generation != b.Generation || !maps.Equal(a.Labels, b.Labels) {
		return true
	}
	// The generation stands for the spec, but for objects that have none.
	return a.Generation == 0 && !apiequality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}

func placeOf(isGated bool) place {
	if isGated {
		return gated
	}
	return active
}

// put moves an item from its place to another, because of what upstream's
// metrics call so.
func (q *queue) put(it *item, to place, cause string) {
	if q.came != nil && to != tried {
		q.came(to, cause)
	}
	q.take(it)
	it.place = to
	q.counts[to]++
	if h := q.heaps[to]; h != nil {
		heap.Push(h, it)
	}
}

// take takes an item out of its place.
func (q *queue) take(it *item) {
	q.counts[it.place]--
	if h := q.heaps[it.place]; h != nil {
		heap.Remove(h, it.index)
	}
}

// blame says that it is because of these plugins, and no others, that a pod has no
// node.
func (q *queue) blame(it *item, plugins ...string) {
	if q.blamed != nil {
		for _, name := range it.blamed {
			q.blamed(name, it.pod.Spec.SchedulerName, -1)
		}
		for _, name := range plugins {
			q.blamed(name, it.pod.Spec.SchedulerName, 1)
		}
	}
	it.blamed = plugins
}

// gatedBy says which plugin keeps a pod from being tried, if it is gated.
func (q *queue) gatedBy(uid types.UID, plugin string) {
	if it := q.items[uid]; it != nil && it.place == gated {
		q.blame(it, plugin)
	}
}

// remove forgets a pod.
func (q *queue) remove(uid types.UID) {
	if it := q.items[uid]; it != nil {
		q.blame(it)
		q.take(it)
		delete(q.items, uid)
	}
}

// pop takes the next pod to try, nil if there is none now.
func (q *queue) pop(now time.Time) *item {
	for {
		it := q.heaps[backoff].first()
		if it == nil || it.ready.After(now) {
			break
		}
		q.put(it, active, "BackoffComplete")
	}
	for {
		it := q.heaps[waiting].first()
		if it == nil || it.latest.After(now) {
			break
		}
		it.held, it.missed, it.flushed = false, "", true
		q.put(it, active, "UnschedulableTimeout")
	}
	it := q.heaps[active].first()
	if it == nil {
		// Nobody is kept from a node by one that has nothing to wait for.
		//
		// https://kep.k8s.io/5142
		it = q.heaps[backoff].first()
	}
	if it == nil || it.failing && it.ready.After(now) {
		return nil
	}
	it.failing = false
	q.blame(it)
	q.put(it, tried, "")
	it.attempts++
	if it.first.IsZero() {
		it.first = now
	}
	return it
}

// nextReady is when the next backoff ends or the next pod has waited long
// enough, zero if there is none.
func (q *queue) nextReady() time.Time {
	var next time.Time
	if it := q.heaps[backoff].first(); it != nil {
		next = it.ready
	}
	if it := q.heaps[waiting].first(); it != nil && (next.IsZero() || it.latest.Before(next)) {
		next = it.latest
	}
	return next
}

// turnDown puts a pod that was tried where it waits for events.
func (q *queue) turnDown(it *item, wake framework.Event, now time.Time) {
	if q.items[it.pod.UID] != it {
		return
	}
	it.wake, it.flushed = wake, false
	it.ready = now.Add(q.backoffAfter(it.attempts))
	it.latest = now.Add(maxWaiting)
	q.put(it, waiting, "ScheduleAttemptFailure")
}

// again puts a pod that was tried, and failed for a reason of the moment, where
// it is tried after its backoff.
func (q *queue) again(it *item, now time.Time) {
	if q.items[it.pod.UID] != it {
		return
	}
	it.ready, it.failing = now.Add(q.backoffAfter(it.attempts)), true
	q.put(it, backoff, "ScheduleAttemptFailure")
}

// retry ends the waiting of a pod, unless it is held.
func (q *queue) retry(it *item, now time.Time, cause string) {
	switch {
	case it.held:
		it.missed = cause
	case it.ready.After(now):
		q.put(it, backoff, cause)
	default:
		q.put(it, active, cause)
	}
}

// release ends the holding of a pod. It goes on waiting until those evicted for
// it are gone, unless that, or something else that may help, has happened
// already, or they were not evicted: failed.
func (q *queue) release(uid types.UID, failed bool, now time.Time) {
	it := q.items[uid]
	if it == nil || !it.held {
		return
	}
	missed := it.missed
	it.held, it.missed = false, ""
	if failed && missed == "" {
		missed = "ScheduleAttemptFailure"
	}
	if it.place == waiting && missed != "" {
		q.retry(it, now, missed)
	}
}

// happened wakes the pods that events may help.
func (q *queue) happened(e framework.Event, now time.Time) {
	if e == 0 {
		return
	}
	// Those that are woken leave the heap.
	for _, it := range slices.Clone(q.heaps[waiting].items) {
		if it.wake&e != 0 {
			q.retry(it, now, e.String())
		}
	}
}

// claimChanged wakes the pods that a change of a claim, named by
// namespace/name, may help: those that have it.
func (q *queue) claimChanged(key string, now time.Time) {
	for _, it := range slices.Clone(q.heaps[waiting].items) {
		if it.wake&framework.ClaimChanged != 0 && hasClaim(it.pod, key) {
			q.retry(it, now, "PersistentVolumeClaimUpdate")
		}
	}
}

// resourceClaimChanged is claimChanged for resource claims.
func (q *queue) resourceClaimChanged(key string, now time.Time) {
	for _, it := range slices.Clone(q.heaps[waiting].items) {
		if it.wake&framework.ClaimChanged != 0 && len(it.pod.Spec.ResourceClaims) > 0 && usesClaim(it.pod, key) {
			q.retry(it, now, "ResourceClaimUpdate")
		}
	}
}

// gatedWithClaims returns the gated pods that ask for devices.
func (q *queue) gatedWithClaims() []*item {
	if q.counts[gated] == 0 {
		return nil
	}
	var out []*item
	for _, it := range q.items {
		if it.place == gated && framework.AsksDevices(it.pod) {
			out = append(out, it)
		}
	}
	return out
}

func hasClaim(pod *corev1.Pod, key string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		name := podrefs.ClaimName(pod, &v)
		return name != "" && pod.Namespace+"/"+name == key
	})
}

func (q *queue) backoffAfter(attempts int) time.Duration {
	d := q.initial
	for i := 1; i < attempts && d < q.most; i++ {
		d *= 2
	}
	return min(d, q.most)
}

// itemHeap implements heap.Interface.
type itemHeap struct {
	items []*item
	less  func(a, b *item) bool
}

// first returns the first item, nil if there is none.
func (h *itemHeap) first() *item {
	if len(h.items) == 0 {
		return nil
	}
	return h.items[0]
}

func (h *itemHeap) Len() int           { return len(h.items) }
func (h *itemHeap) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }
func (h *itemHeap) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.items[i].index, h.items[j].index = i, j
}
func (h *itemHeap) Push(x any) {
	it := x.(*item)
	it.index = len(h.items)
	h.items = append(h.items, it)
}
func (h *itemHeap) Pop() any {
	last := len(h.items) - 1
	it := h.items[last]
	h.items[last] = nil
	h.items = h.items[:last]
	return it
}
