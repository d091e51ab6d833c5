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
	"hyperkube/internal/api/podrefs"
)

const (
	// initialBackoff and maxBackoff are the default bounds of a pod's back-off: it starts with the first and grows with
	// each failed attempt up to the second.
	initialBackoff = time.Second
	maxBackoff     = 10 * time.Second
	// maxWaiting is the time after which an unschedulable pod is retried even without an event.
	maxWaiting = 5 * time.Minute
)

// subQueue is a part of the scheduling queue: pods that are ready, in back-off, unschedulable, gated or in scheduling.
// Each pod without a node is in one part.
type subQueue uint8

const (
	activeQ       subQueue = iota // pods to schedule, in order
	backoffQ                      // pods to schedule after their back-off, or earlier if there are no others
	unschedulable                 // unschedulable pods that wait for an event
	gated                         // pods that a PreEnqueue plugin blocks
	inFlight                      // pods being scheduled
	numSubQueues
)

// item is a pod in the scheduling queue, with the number and times of its attempts and the reasons why it waits.
type item struct {
	pod      *corev1.Pod
	added    time.Time // time when it was added to the queue, or ungated
	first    time.Time // time of the first attempt, or zero
	attempts int       // number of attempts
	subQueue subQueue
	// events are the events that may make the pod schedulable.
	events     framework.Event
	backoffEnd time.Time // end of the back-off
	// failed is true if the last attempt failed with an error. Then the pod is not scheduled
	// before the end of its back-off.
	failed bool
	// retryAt is when an unschedulable pod is retried without an event.
	retryAt time.Time
	// evicting is true while the pod's preemption victims are being evicted. The pod stays
	// unschedulable until then. missedEvent is the last event in the meantime that would have moved it.
	evicting    bool
	missedEvent string
	// plugins are the names of the plugins that made the pod unschedulable.
	plugins []string
	// flushed is true if the pod is retried without an event.
	flushed bool
	index   int // index in its heap
}

// queue contains the pods without a node, each in one subQueue. It has no clock: the caller passes the current time.
// Only the goroutine of Run uses it.
type queue struct {
	items map[types.UID]*item
	heaps [numSubQueues]*itemHeap // nil for parts without an order
	// counts are the numbers of pods in each part.
	counts [numSubQueues]int
	// onAdd, if not nil, is called for each pod that is added to a part, with the event that caused
	// it.
	onAdd func(to subQueue, cause string)
	// onUnschedulable, if not nil, is called when the number of pods that a plugin makes unschedulable
	// changes by by.
	onUnschedulable func(plugin, profile string, by float64)
	// initial and max are the initial and the maximum back-off of a pod after unsuccessful attempts.
	initial, max time.Duration
}

// newQueue returns an empty queue with the default back-off.
func newQueue() *queue {
	q := &queue{items: map[types.UID]*item{}, initial: initialBackoff, max: maxBackoff}
	q.heaps[activeQ] = &itemHeap{less: func(a, b *item) bool {
		if pa, pb := corev1helpers.PodPriority(a.pod), corev1helpers.PodPriority(b.pod); pa != pb {
			return pa > pb
		}
		return a.added.Before(b.added)
	}}
	inOrder := q.heaps[activeQ].less
	q.heaps[backoffQ] = &itemHeap{less: func(a, b *item) bool {
		// Pods whose last attempt failed with an error come last, because they are not scheduled
		// before the end of their back-off. Of the others, if their back-off ends in the same
		// second, the more important pod comes first.
		if a.failed || b.failed {
			return !a.failed || b.failed && a.backoffEnd.Before(b.backoffEnd)
		}
		if x, y := a.backoffEnd.Truncate(time.Second), b.backoffEnd.Truncate(time.Second); !x.Equal(y) {
			return x.Before(y)
		}
		return inOrder(a, b)
	}}
	q.heaps[unschedulable] = &itemHeap{less: func(a, b *item) bool { return a.retryAt.Before(b.retryAt) }}
	return q
}

// set adds a pod to the queue or replaces the object of a pod in it. isGated reports whether a PreEnqueue plugin blocks
// the pod. An unschedulable pod is tried again if the update may make it schedulable.
func (q *queue) set(pod *corev1.Pod, isGated bool, now time.Time) {
	it := q.items[pod.UID]
	if it == nil {
		it = &item{pod: pod, added: now, subQueue: inFlight}
		q.items[pod.UID] = it
		q.counts[inFlight]++
		q.put(it, subQueueOf(isGated), "PodAdd")
		return
	}
	old := it.pod
	it.pod = pod
	switch {
	case it.subQueue == inFlight:
		// It is being scheduled.
	case isGated && it.subQueue != gated:
		q.put(it, gated, "PodUpdate")
	case it.subQueue == gated && !isGated:
		it.added = now
		q.put(it, activeQ, "PodUpdate")
	case it.subQueue == unschedulable && schedulingChanged(old, pod):
		q.requeue(it, now, "PodUpdate")
	case it.subQueue == activeQ:
		heap.Fix(q.heaps[activeQ], it.index)
	}
}

// schedulingChanged reports whether an update of an unschedulable pod from a to b may make it schedulable: its spec or
// labels have changed.
func schedulingChanged(a, b *corev1.Pod) bool {
	if a.Generation != b.Generation || !maps.Equal(a.Labels, b.Labels) {
		return true
	}
	// The generation changes with the spec. Objects without a generation are compared.
	return a.Generation == 0 && !apiequality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}

// subQueueOf returns the part of the scheduling queue for a new pod: gated if isGated is set, and activeQ otherwise.
func subQueueOf(isGated bool) subQueue {
	if isGated {
		return gated
	}
	return activeQ
}

// put moves an item to the subQueue to. cause is upstream's name of the cluster event that caused this, for metrics.
func (q *queue) put(it *item, to subQueue, cause string) {
	if q.onAdd != nil && to != inFlight {
		q.onAdd(to, cause)
	}
	q.take(it)
	it.subQueue = to
	q.counts[to]++
	if h := q.heaps[to]; h != nil {
		heap.Push(h, it)
	}
}

// take removes an item from its subQueue. The caller then adds it to another one or deletes it.
func (q *queue) take(it *item) {
	q.counts[it.subQueue]--
	if h := q.heaps[it.subQueue]; h != nil {
		heap.Remove(h, it.index)
	}
}

// setPlugins stores which plugins make a pod unschedulable, for metrics. None means that the pod is not unschedulable
// any more.
func (q *queue) setPlugins(it *item, plugins ...string) {
	if q.onUnschedulable != nil {
		for _, name := range it.plugins {
			q.onUnschedulable(name, it.pod.Spec.SchedulerName, -1)
		}
		for _, name := range plugins {
			q.onUnschedulable(name, it.pod.Spec.SchedulerName, 1)
		}
	}
	it.plugins = plugins
}

// gatedBy stores which plugin blocks a pod, for metrics. It does nothing if the pod is not gated.
func (q *queue) gatedBy(uid types.UID, plugin string) {
	if it := q.items[uid]; it != nil && it.subQueue == gated {
		q.setPlugins(it, plugin)
	}
}

// remove removes a pod that was assigned to a node or deleted. It does nothing if the queue does not contain the pod.
func (q *queue) remove(uid types.UID) {
	if it := q.items[uid]; it != nil {
		q.setPlugins(it)
		q.take(it)
		delete(q.items, uid)
	}
}

// pop returns the next pod to schedule and moves it to inFlight, or returns nil if there is none now. Pods whose
// back-off or maximum waiting time has ended become active first. If no pod is active, pop returns a pod before the end
// of its back-off, unless its last attempt failed with an error.
func (q *queue) pop(now time.Time) *item {
	for {
		it := q.heaps[backoffQ].first()
		if it == nil || it.backoffEnd.After(now) {
			break
		}
		q.put(it, activeQ, "BackoffComplete")
	}
	for {
		it := q.heaps[unschedulable].first()
		if it == nil || it.retryAt.After(now) {
			break
		}
		it.evicting, it.missedEvent, it.flushed = false, "", true
		q.put(it, activeQ, "UnschedulableTimeout")
	}
	it := q.heaps[activeQ].first()
	if it == nil {
		// If there is nothing else to schedule, do not wait for the end of a back-off.
		//
		// https://kep.k8s.io/5142
		it = q.heaps[backoffQ].first()
	}
	if it == nil || it.failed && it.backoffEnd.After(now) {
		return nil
	}
	it.failed = false
	q.setPlugins(it)
	q.put(it, inFlight, "")
	it.attempts++
	if it.first.IsZero() {
		it.first = now
	}
	return it
}

// nextReady returns the time at which pop may return a pod although no event occurs: the earliest end of a back-off or
// of the maximum waiting time. It returns the zero time if there is no such pod.
func (q *queue) nextReady() time.Time {
	var next time.Time
	if it := q.heaps[backoffQ].first(); it != nil {
		next = it.backoffEnd
	}
	if it := q.heaps[unschedulable].first(); it != nil && (next.IsZero() || it.retryAt.Before(next)) {
		next = it.retryAt
	}
	return next
}

// addUnschedulable queues a pod that fits no node. It is tried again after one of the events in wake, and at the latest
// after maxWaiting. It does nothing if the pod was removed during the attempt.
func (q *queue) addUnschedulable(it *item, wake framework.Event, now time.Time) {
	if q.items[it.pod.UID] != it {
		return
	}
	it.events, it.flushed = wake, false
	it.backoffEnd = now.Add(q.backoffAfter(it.attempts))
	it.retryAt = now.Add(maxWaiting)
	q.put(it, unschedulable, "ScheduleAttemptFailure")
}

// addBackoff queues a pod for another attempt after its back-off, because the last attempt failed with an error. It
// does nothing if the pod was removed during the attempt.
func (q *queue) addBackoff(it *item, now time.Time) {
	if q.items[it.pod.UID] != it {
		return
	}
	it.backoffEnd, it.failed = now.Add(q.backoffAfter(it.attempts)), true
	q.put(it, backoffQ, "ScheduleAttemptFailure")
}

// requeue moves an unschedulable pod to backoffQ, or to activeQ if its back-off has ended. While its preemption victims
// are being evicted, it only stores the event in missedEvent, and evictionDone moves the pod. cause is upstream's name
// of the event.
func (q *queue) requeue(it *item, now time.Time, cause string) {
	switch {
	case it.evicting:
		it.missedEvent = cause
	case it.backoffEnd.After(now):
		q.put(it, backoffQ, cause)
	default:
		q.put(it, activeQ, cause)
	}
}

// evictionDone is called when the preemption victims of a pod have been evicted, or could not be if failed is true. The
// pod stays unschedulable until an event shows that the victims are deleted. It is queued again now if an event was
// missed during the eviction, or if the eviction failed.
func (q *queue) evictionDone(uid types.UID, failed bool, now time.Time) {
	it := q.items[uid]
	if it == nil || !it.evicting {
		return
	}
	missed := it.missedEvent
	it.evicting, it.missedEvent = false, ""
	if failed && missed == "" {
		missed = "ScheduleAttemptFailure"
	}
	if it.subQueue == unschedulable && missed != "" {
		q.requeue(it, now, missed)
	}
}

// onEvent queues the unschedulable pods again that one of the events in e may make schedulable.
func (q *queue) onEvent(e framework.Event, now time.Time) {
	if e == 0 {
		return
	}
	// Clone, because requeue removes items from the heap.
	for _, it := range slices.Clone(q.heaps[unschedulable].items) {
		if it.events&e != 0 {
			q.requeue(it, now, e.String())
		}
	}
}

// claimChanged queues the unschedulable pods again that use the changed PersistentVolumeClaim with this key, which is
// its namespace/name.
func (q *queue) claimChanged(key string, now time.Time) {
	for _, it := range slices.Clone(q.heaps[unschedulable].items) {
		if it.events&framework.ClaimChanged != 0 && hasClaim(it.pod, key) {
			q.requeue(it, now, "PersistentVolumeClaimUpdate")
		}
	}
}

// resourceClaimChanged queues the unschedulable pods again that use the changed ResourceClaim with this key, which is
// its namespace/name.
func (q *queue) resourceClaimChanged(key string, now time.Time) {
	for _, it := range slices.Clone(q.heaps[unschedulable].items) {
		if it.events&framework.ClaimChanged != 0 && len(it.pod.Spec.ResourceClaims) > 0 && usesClaim(it.pod, key) {
			q.requeue(it, now, "ResourceClaimUpdate")
		}
	}
}

// gatedWithClaims returns the gated pods that request devices, which may be waiting for a claim.
func (q *queue) gatedWithClaims() []*item {
	if q.counts[gated] == 0 {
		return nil
	}
	var out []*item
	for _, it := range q.items {
		if it.subQueue == gated && framework.RequestsDevices(it.pod) {
			out = append(out, it)
		}
	}
	return out
}

// hasClaim reports whether a pod uses the PersistentVolumeClaim with this key, which is its namespace/name.
func hasClaim(pod *corev1.Pod, key string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		name := podrefs.ClaimName(pod, &v)
		return name != "" && pod.Namespace+"/"+name == key
	})
}

// backoffAfter returns the back-off after a number of attempts. It doubles with each attempt up to q.max.
func (q *queue) backoffAfter(attempts int) time.Duration {
	d := q.initial
	for i := 1; i < attempts && d < q.max; i++ {
		d *= 2
	}
	return min(d, q.max)
}

// itemHeap is a heap of items, ordered by less. It implements heap.Interface and keeps item.index up to date.
type itemHeap struct {
	items []*item
	less  func(a, b *item) bool
}

// first returns the item that is first in the order, or nil if the heap is empty.
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
