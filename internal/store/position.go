package store

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// position is the revision up to which the caches have everything, and those
// who wait for it to advance.
type position struct {
	revision atomic.Int64
	// known is the highest revision that etcd is known to have reached.
	known atomic.Int64
	// stopped is closed when it will not advance any more.
	stopped <-chan struct{}
	// wanted has a token when somebody began to wait, answered when etcd
	// answered a request for progress or nobody waits any more.
	wanted, answered chan struct{}

	mu      sync.Mutex
	waiters waiterHeap
}

type waiter struct {
	revision int64
	reached  chan struct{}
	index    int // in the heap, -1 when not there any more
}

func newPosition(stopped <-chan struct{}) *position {
	return &position{
		stopped:  stopped,
		wanted:   make(chan struct{}, 1),
		answered: make(chan struct{}, 1),
	}
}

func (p *position) get() int64 { return p.revision.Load() }

// learn notes that etcd has reached a revision.
func (p *position) learn(revision int64) {
	for {
		old := p.known.Load()
		if revision <= old || p.known.CompareAndSwap(old, revision) {
			return
		}
	}
}

// advance publishes that the caches have everything up to revision and wakes
// who waited for that.
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
		signal(p.answered)
	}
}

// reset is advance to a revision that may be lower.
func (p *position) reset(revision int64) {
	if revision < p.get() {
		p.mu.Lock()
		p.known.Store(revision)
		p.revision.Store(revision)
		p.mu.Unlock()
	}
	p.advance(revision)
}

// wait blocks until the caches have everything up to revision.
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
	signal(p.wanted)

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

// lowest returns the lowest revision that is waited for, zero if none is.
func (p *position) lowest() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiters) == 0 {
		return 0
	}
	return p.waiters[0].revision
}

const (
	// progressDelay lets an event that is on its way arrive by itself.
	progressDelay = time.Millisecond
	// progressAgain is when a request for progress is repeated: etcd drops
	// those that come while the watch catches up.
	progressAgain = 100 * time.Millisecond
)

// askProgress asks etcd for progress for as long as somebody waits for a
// revision, with one request under way at a time, until ctx ends.
func (p *position) askProgress(ctx context.Context, request func(context.Context) error) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-p.wanted:
		case <-ctx.Done():
			return
		}
		timer.Reset(progressDelay)
		select {
		case <-p.answered: // a late one, or nobody waits any more
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		for p.lowest() > 0 {
			// An error means that there is no watch now; it is repeated.
			_ = request(ctx)
			timer.Reset(progressAgain)
			answered := false
			select {
			case <-p.answered:
				answered = true
			case <-timer.C:
			case <-ctx.Done():
				return
			}
			if lowest := p.lowest(); !answered || lowest == 0 || lowest <= p.known.Load() {
				continue
			}
			// etcd itself is not there yet. Asking right away would go
			// round and round.
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

// currentReads shares linearizable reads of etcd's revision between those who
// ask for it at the same time.
type currentReads struct {
	mu sync.Mutex
	// running was sent before a newcomer asked and is of no use to it; it
	// shares next with all others who come until that is sent.
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

// run sends read after read while somebody wants the next. No caller's ctx
// ends it, for it is for others too.
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

// waiterHeap has the lowest revision first.
type waiterHeap []*waiter

func (h waiterHeap) Len() int           { return len(h) }
func (h waiterHeap) Less(i, j int) bool { return h[i].revision < h[j].revision }
func (h waiterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push and Pop are for container/heap.
func (h *waiterHeap) Push(x any) {
	w := x.(*waiter)
	w.index = len(*h)
	*h = append(*h, w)
}

// Pop removes the last.
func (h *waiterHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	w.index = -1
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return w
}
