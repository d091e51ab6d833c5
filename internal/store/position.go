package store

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// position is the revision up to which the caches are complete, and the goroutines that wait for it
// to advance.
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

type waiter struct {
	revision int64
	reached  chan struct{}
	index    int // in the heap, -1 after removal
}

func newPosition(stopped <-chan struct{}) *position {
	return &position{
		stopped:   stopped,
		requested: make(chan struct{}, 1),
		responded: make(chan struct{}, 1),
	}
}

func (p *position) get() int64 { return p.revision.Load() }

// learn records that etcd has reached a revision.
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

// reset is like advance, but the revision may be lower than before.
func (p *position) reset(revision int64) {
	if revision < p.get() {
		p.mu.Lock()
		p.known.Store(revision)
		p.revision.Store(revision)
		p.mu.Unlock()
	}
	p.advance(revision)
}

// wait blocks until the caches are complete up to revision.
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

// requestProgress requests progress notifications from etcd while goroutines wait for a revision, one
// request at a time, until ctx is done.
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

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// currentReads shares linearizable reads of etcd's revision between concurrent callers.
type currentReads struct {
	mu sync.Mutex
	// running is the active read. It was sent before new callers arrived, so they cannot use its
	// result; they share next, which is sent afterwards.
	running, next *currentRead
}

type currentRead struct {
	done     chan struct{}
	revision int64
	err      error
}

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

// run sends reads one by one while callers wait for the next. It does not use the context of a
// caller, because callers share the reads.
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

// Push implements heap.Interface.
func (h *waiterHeap) Push(x any) {
	w := x.(*waiter)
	w.index = len(*h)
	*h = append(*h, w)
}

// Pop implements heap.Interface.
func (h *waiterHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	w.index = -1
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return w
}
