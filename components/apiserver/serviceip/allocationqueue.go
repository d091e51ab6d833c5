package serviceip

import (
	"context"
	"sync"
	"time"

	"hyperkube/internal/base/broadcast"
)

// allocationQueue serializes node port allocations that are based on the same stored version of the
// allocated ports. Only one allocation per version can be committed, so the next one waits until
// the watch sees a newer version. The wait is limited, because an allocation may never be
// committed: the request may be a dry run, or may be rejected for another reason. The queue only
// improves performance. Transaction conditions guarantee correctness.
type allocationQueue struct {
	mu sync.Mutex
	// chosen is the revision on which the current allocation is based, valid until deadline.
	chosen   int64
	deadline time.Time
	// changed is notified when the watch has seen a new version.
	changed broadcast.Broadcast
}

// commitTimeout is how long other allocations wait for the commit of the current one. It is longer
// than a transaction takes on a slow disk.
const commitTimeout = 50 * time.Millisecond

// newAllocationQueue returns a queue without a current allocation.
func newAllocationQueue() *allocationQueue {
	return &allocationQueue{chosen: -1}
}

// wait waits until the caller may allocate ports, because no other allocation is based on the revision that current
// returns, or that one has taken longer than commitTimeout. current returns the revision of the allocated ports in
// the cache. wait returns the revision, which the caller passes to release. The error is that of ctx.
func (t *allocationQueue) wait(ctx context.Context, current func() int64) (int64, error) {
	for {
		t.mu.Lock()
		revision, now := current(), time.Now()
		if revision != t.chosen || !now.Before(t.deadline) {
			t.chosen, t.deadline = revision, now.Add(commitTimeout)
			t.mu.Unlock()
			return revision, nil
		}
		changed, wait := t.changed.Next(), t.deadline.Sub(now)
		t.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, ctx.Err()
		}
		timer.Stop()
	}
}

// release ends the allocation that wait started at the revision, if it writes nothing, so that the
// next one does not need to wait for the timeout.
func (t *allocationQueue) release(revision int64) {
	t.mu.Lock()
	if t.chosen == revision {
		t.chosen = -1
	}
	t.mu.Unlock()
	t.notify()
}

// notify wakes the waiting allocations. It is called when the watch has seen a newer version of the
// allocated ports.
func (t *allocationQueue) notify() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed.Send()
}
