package serviceip

import (
	"context"
	"sync"
	"time"

	"hyperkube/internal/base/broadcast"
)

// allocationQueue serializes port allocations that are based on the same stored version. Only one allocation
// per version can be committed, so the next one waits until the watch sees a newer version. The
// wait is limited, because an allocation may never be committed: the request may be a dry run, or
// may be rejected for another reason. This only improves performance. Transaction conditions
// guarantee correctness.
type allocationQueue struct {
	mu sync.Mutex
	// chosen is the revision on which the current allocation is based, valid until deadline.
	chosen   int64
	deadline time.Time
	// changed is notified when the watch has seen a new version.
	changed broadcast.Broadcast
}

// commitTimeout is how long other allocations wait for the commit. It is longer than a transaction takes
// on a slow disk.
const commitTimeout = 50 * time.Millisecond

func newAllocationQueue() *allocationQueue {
	return &allocationQueue{chosen: -1}
}

// wait waits until no other allocation is based on the revision that current returns, which is that
// of the cache. It returns that revision.
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

// release ends an allocation that does not write anything.
func (t *allocationQueue) release(revision int64) {
	t.mu.Lock()
	if t.chosen == revision {
		t.chosen = -1
	}
	t.mu.Unlock()
	t.notify()
}

// notify wakes the waiting allocations because there is a newer version.
func (t *allocationQueue) notify() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed.Send()
}
