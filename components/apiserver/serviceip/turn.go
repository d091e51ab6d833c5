package serviceip

import (
	"context"
	"sync"
	"time"
)

// turn spreads choices from one stored version over its successors. A choice
// from a version that somebody has chosen from already is bound to lose, so
// whoever comes next waits until the watch tells a newer version. The wait is
// bounded, because a choice may never be written: the request may be a dry
// run, or refused for another reason. It is about speed alone, comparisons
// keep the ports apart.
type turn struct {
	mu sync.Mutex
	// chosen is the revision that has been chosen from, until deadline.
	chosen   int64
	deadline time.Time
	// changed is closed when the watch has told something.
	changed chan struct{}
}

// patience is how long a choice is given to be written: longer than a
// transaction takes on a slow disk.
const patience = 50 * time.Millisecond

func newTurn() *turn { return &turn{chosen: -1, changed: make(chan struct{})} }

// take waits until nobody else is about to write over what current returns,
// which is the revision that the cache has. It returns that.
func (t *turn) take(ctx context.Context, current func() int64) (int64, error) {
	for {
		t.mu.Lock()
		revision, now := current(), time.Now()
		if revision != t.chosen || !now.Before(t.deadline) {
			t.chosen, t.deadline = revision, now.Add(patience)
			t.mu.Unlock()
			return revision, nil
		}
		changed, wait := t.changed, t.deadline.Sub(now)
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

// pass gives back a turn that nothing will be written in.
func (t *turn) pass(revision int64) {
	t.mu.Lock()
	if t.chosen == revision {
		t.chosen = -1
	}
	t.mu.Unlock()
	t.tell()
}

// tell wakes those who wait: there is a newer version.
func (t *turn) tell() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.changed)
	t.changed = make(chan struct{})
}
