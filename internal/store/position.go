package store

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// position tracks the etcd revision up to which all caches of the store are complete, and wakes the
// goroutines that wait until the caches include a revision.
type position struct {
	revision atomic.Int64
	// known is the highest revision that etcd is known to have reached.
	known atomic.Int64
	// stopped is closed when the position does not advance anymore.
	stopped <-chan struct{}
	// requested receives a token when a goroutine starts to wait. responded receives one when etcd has
	// responded to a progress request, or no goroutine waits anymore.
	requested, responded chan struct{}

	mu      sync.Mutex
	waiters waiterHeap
}

// waiter is a goroutine in wait. reached is closed when the caches are complete up to revision.
type waiter struct {
	revision int64
	reached  chan struct{}
	index    int // in the heap, -1 after removal
}

// newPosition returns a position that includes no revision yet. Goroutines that wait for a revision return when
// stopped is closed.
func newPosition(stopped <-chan struct{}) *position {
	return &position{
		stopped:   stopped,
		requested: make(chan struct{}, 1),
		responded: make(chan struct{}, 1),
	}
}

// get returns the revision up to which the caches are complete.
func (p *position) get() int64 { return p.revision.Load() }

// learn records that etcd has reached a revision, which the caches may not include yet.
// requestProgress then knows that a progress notification can satisfy a waiter of this revision.
func (p *position) learn(revision int64) {
	for {
		old := p.known.Load()
		if revision <= old || p.known.CompareAndSwap(old, revision) {
			return
		}
	}
}

// advance sets the position to revision, up to which the caches are complete, and wakes the
// goroutines that wait for it.
func (p *position) advance(revision int64) {
	p.learn(revision)
	p.mu.Lock()
	defer p.mu.Unlock()
	if revision > p.revision.Load() {
		p.revision.Store(revision)
	}
	if len(p.waiters) == 0 {
		return
	}
	for len(p.waiters) > 0 && p.waiters[0].revision <= revision {
		close(heap.Pop(&p.waiters).(*waiter).reached)
	}
	if len(p.waiters) == 0 {
		signal(p.responded)
	}
}

// reset sets the position after all caches were read again. In contrast to advance, the revision
// may be lower than before, because etcd may have been restored from a backup.
func (p *position) reset(revision int64) {
	if revision < p.get() {
		p.mu.Lock()
		p.known.Store(revision)
		p.revision.Store(revision)
		p.mu.Unlock()
	}
	p.advance(revision)
}

// wait blocks until the caches are complete up to revision. It returns ErrStopped if the store
// stops first. If ctx is done first, it returns the error of ctx, which also wraps ErrUnavailable
// if the deadline was exceeded.
func (p *position) wait(ctx context.Context, revision int64) error {
	if p.get() >= revision {
		return nil
	}
	p.mu.Lock()
	if p.get() >= revision {
		p.mu.Unlock()
		return nil
	}
	w := &waiter{revision: revision, reached: make(chan struct{})}
	heap.Push(&p.waiters, w)
	p.mu.Unlock()
	signal(p.requested)

	select {
	case <-w.reached:
		return nil
	case <-p.stopped:
	case <-ctx.Done():
	}
	p.mu.Lock()
	if w.index >= 0 {
		heap.Remove(&p.waiters, w.index)
	}
	p.mu.Unlock()
	if ctx.Err() == nil {
		return ErrStopped
	}
	return fmt.Errorf("waiting for revision %d: %w", revision, waitError(ctx))
}

// lowest returns the lowest revision that a goroutine waits for, or zero if none waits.
func (p *position) lowest() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiters) == 0 {
		return 0
	}
	return p.waiters[0].revision
}

const (
	// progressDelay is the delay before a progress request, because the awaited event often arrives
	// by itself.
	progressDelay = time.Millisecond
	// progressRetry is the interval after which a progress request is repeated, because etcd
	// ignores requests while the watch catches up.
	progressRetry = 100 * time.Millisecond
)

// requestProgress calls request, which asks etcd for a progress notification, while goroutines wait for a revision.
// The notification advances the position although no object has changed. One request is sent at a time, and again
// after progressRetry without a response. requestProgress returns when ctx is done.
func (p *position) requestProgress(ctx context.Context, request func(context.Context) error) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-p.requested:
		case <-ctx.Done():
			return
		}
		timer.Reset(progressDelay)
		select {
		case <-p.responded: // late response, or no goroutine waits
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		for p.lowest() > 0 {
			// An error means that there is no watch at the moment. The request is repeated.
			_ = request(ctx)
			timer.Reset(progressRetry)
			answered := false
			select {
			case <-p.responded:
				answered = true
			case <-timer.C:
			case <-ctx.Done():
				return
			}
			if lowest := p.lowest(); !answered || lowest == 0 || lowest <= p.known.Load() {
				continue
			}
			// etcd itself has not reached the revision yet. Wait, to avoid a busy loop.
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

// signal sends a token to ch, which has a capacity of one. It does nothing if ch already contains
// one.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// currentReads shares linearizable reads of etcd's current revision between concurrent callers, so
// that many consistent reads need few requests to etcd.
type currentReads struct {
	mu sync.Mutex
	// running is the active read. It was sent before new callers arrived, so they cannot use its
	// result; they share next, which is sent afterwards.
	running, next *currentRead
}

// currentRead is one read of etcd's current revision. done is closed when revision and err are set.
type currentRead struct {
	done     chan struct{}
	revision int64
	err      error
}

// get returns etcd's current revision from a call of read that starts after the call of get, or the error of read. If
// ctx is done first, it returns the error of ctx, and the read continues for the other callers.
func (r *currentReads) get(ctx context.Context, read func() (int64, error)) (int64, error) {
	r.mu.Lock()
	var mine *currentRead
	switch {
	case r.running == nil:
		mine = &currentRead{done: make(chan struct{})}
		r.running = mine
		go r.run(mine, read)
	case r.next == nil:
		mine = &currentRead{done: make(chan struct{})}
		r.next = mine
	default:
		mine = r.next
	}
	r.mu.Unlock()
	select {
	case <-mine.done:
		return mine.revision, mine.err
	case <-ctx.Done():
		return 0, fmt.Errorf("reading the current revision: %w", waitError(ctx))
	}
}

// run calls send for read, and then for each read that callers of get have requested meanwhile. It
// returns when no caller waits. It does not use the context of a caller, because callers share the
// reads.
func (r *currentReads) run(read *currentRead, send func() (int64, error)) {
	for read != nil {
		read.revision, read.err = send()
		close(read.done)
		r.mu.Lock()
		r.running, r.next = r.next, nil
		read = r.running
		r.mu.Unlock()
	}
}

// waiterHeap is a heap with the lowest revision first.
type waiterHeap []*waiter

func (h waiterHeap) Len() int           { return len(h) }
func (h waiterHeap) Less(i, j int) bool { return h[i].revision < h[j].revision }
func (h waiterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface. It records the position of the waiter in the heap, so that wait
// can remove it.
func (h *waiterHeap) Push(x any) {
	w := x.(*waiter)
	w.index = len(*h)
	*h = append(*h, w)
}

// Pop implements heap.Interface. It sets the index of the waiter to -1, which means that it is not
// in the heap anymore.
func (h *waiterHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	w.index = -1
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return w
}
