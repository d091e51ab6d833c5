package scheduler

import (
	"container/heap"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"hyperkube/components/scheduler/framework"
)

// How long a pod that could not be placed waits at least before it is tried
// again.
const (
	initialBackoff = time.Second
	maxBackoff     = 10 * time.Second
)

// place is where in the queue a pod is.
type place uint8

const (
	active  place = iota // to be tried, in order
	backoff              // to be tried when its time has come
	waiting              // until something happens that may help
	gated                // until its gates are gone
	tried                // taken out, being placed
)

// item is one pod without a node.
type item struct {
	pod      *corev1.Pod
	added    time.Time
	attempts int
	place    place
	// wake are the events that may help a waiting pod.
	wake  framework.Event
	ready time.Time // end of the backoff
	index int       // in its heap
}

// queue holds the pods without a node. It is pure: the clock is an argument.
type queue struct {
	items  map[types.UID]*item
	active itemHeap
	later  itemHeap
}

func newQueue() *queue {
	return &queue{
		items: map[types.UID]*item{},
		active: itemHeap{less: func(a, b *item) bool {
			if pa, pb := corev1helpers.PodPriority(a.pod), corev1helpers.PodPriority(b.pod); pa != pb {
				return pa > pb
			}
			return a.added.Before(b.added)
		}},
		later: itemHeap{less: func(a, b *item) bool { return a.ready.Before(b.ready) }},
	}
}

// set adds a pod, or takes notice of its change: one that was turned down is
// tried again when it changed in what a decision depends on.
func (q *queue) set(pod *corev1.Pod, isGated bool, now time.Time) {
	it := q.items[pod.UID]
	if it == nil {
		it = &item{pod: pod, added: now}
		q.items[pod.UID] = it
		q.put(it, placeOf(isGated))
		return
	}
	old := it.pod
	it.pod = pod
	switch it.place {
	case gated:
		if !isGated {
			it.added = now
			q.put(it, active)
		}
	case waiting:
		if old.Generation != pod.Generation || len(old.Labels) != len(pod.Labels) {
			q.retry(it, now)
		}
	case active:
		heap.Fix(&q.active, it.index)
	}
}

func placeOf(isGated bool) place {
	if isGated {
		return gated
	}
	return active
}

// put moves an item that is in no heap, or takes it out of its heap first.
func (q *queue) put(it *item, to place) {
	q.take(it)
	it.place = to
	switch to {
	case active:
		heap.Push(&q.active, it)
	case backoff:
		heap.Push(&q.later, it)
	}
}

func (q *queue) take(it *item) {
	switch {
	case it.place == active && it.index < q.active.Len() && q.active.items[it.index] == it:
		heap.Remove(&q.active, it.index)
	case it.place == backoff && it.index < q.later.Len() && q.later.items[it.index] == it:
		heap.Remove(&q.later, it.index)
	}
}

// remove forgets a pod.
func (q *queue) remove(uid types.UID) {
	if it := q.items[uid]; it != nil {
		q.take(it)
		delete(q.items, uid)
	}
}

// pop takes the next pod to try, nil if there is none now.
func (q *queue) pop(now time.Time) *item {
	for q.later.Len() > 0 && !q.later.items[0].ready.After(now) {
		q.put(q.later.items[0], active)
	}
	if q.active.Len() == 0 {
		return nil
	}
	it := heap.Pop(&q.active).(*item)
	it.place = tried
	it.attempts++
	return it
}

// nextReady is when the next backoff ends, zero if there is none.
func (q *queue) nextReady() time.Time {
	if q.later.Len() == 0 {
		return time.Time{}
	}
	return q.later.items[0].ready
}

// turnDown puts a pod that was tried where it waits for events.
func (q *queue) turnDown(it *item, wake framework.Event, now time.Time) {
	if q.items[it.pod.UID] != it {
		return
	}
	it.wake = wake
	it.ready = now.Add(backoffAfter(it.attempts))
	q.put(it, waiting)
}

// again puts a pod that was tried, and failed for a reason of the moment, where
// it is tried after its backoff.
func (q *queue) again(it *item, now time.Time) {
	if q.items[it.pod.UID] != it {
		return
	}
	it.ready = now.Add(backoffAfter(it.attempts))
	q.put(it, backoff)
}

// retry ends the waiting of a pod.
func (q *queue) retry(it *item, now time.Time) {
	if it.ready.After(now) {
		q.put(it, backoff)
	} else {
		q.put(it, active)
	}
}

// happened wakes the pods that an event may help.
func (q *queue) happened(e framework.Event, now time.Time) {
	for _, it := range q.items {
		if it.place == waiting && it.wake&e != 0 {
			q.retry(it, now)
		}
	}
}

func backoffAfter(attempts int) time.Duration {
	d := initialBackoff
	for i := 1; i < attempts && d < maxBackoff; i++ {
		d *= 2
	}
	return min(d, maxBackoff)
}

// itemHeap implements heap.Interface.
type itemHeap struct {
	items []*item
	less  func(a, b *item) bool
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
