package store

import (
	"context"
	"fmt"
	"slices"
)

// replayRevisions is the maximum number of revisions of a replay. etcd reads all revisions since
// its start, including those of other keys.
const replayRevisions = 5000

// replay reads events from before the cache was filled from etcd and adds them to the history, so that clients can
// resume watches that they started before a restart of the API server. since is the revision from which the client
// resumes. It does nothing if since is more than replayRevisions old, if events were read before, or if the history
// is already full. If etcd cannot return them, replay logs that and returns nil; the client gets the same error as
// after a compaction. It returns an error only if ctx is done.
func (c *Collection) replay(ctx context.Context, since int64) error {
	select {
	case c.replaying <- struct{}{}:
		defer func() { <-c.replaying }()
	case <-ctx.Done():
		return waitError(ctx)
	}
	c.mu.Lock()
	end, generation := c.ring.start, c.generation
	// The ring can grow backwards only while it still starts at the revision of the fill.
	useful := c.ring.first == c.firstEvent && since < end && since >= end-replayRevisions && !c.replayed
	if useful {
		c.replayed = true
	}
	c.mu.Unlock()
	if !useful {
		return nil
	}
	events, start, err := etcdReader{c}.events(ctx, max(0, end-replayRevisions), end)
	if err != nil {
		if ctx.Err() != nil {
			// Another caller may have more time.
			c.mu.Lock()
			c.replayed = false
			c.mu.Unlock()
			return fmt.Errorf("reading past events: %w", waitError(ctx))
		}
		c.store.log.Warn("reading past events from etcd failed; clients cannot resume watches from before the start of this API server and list again, no retry", "path", c.cfg.Path, "err", err)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.generation == generation && c.ring.first == c.firstEvent && c.ring.start == end {
		c.ring.prepend(events, start)
		c.firstEvent = c.ring.first
	}
	return nil
}

// prepend adds events from before the recorded history r, as many of the latest as its limits allow. events must
// contain all events of the collection in (start, r.start], sorted by revision.
func (r *ring) prepend(events []Event, start int64) {
	present := make([]Event, 0, r.next-r.first)
	for n := r.first; n < r.next; n++ {
		present = append(present, *r.at(n))
	}
	// Event numbers only grow, and pending watchers keep their numbers, so the added events get
	// numbers below the first.
	room := max(0, min(r.maxEvents-len(present), int(r.first)))
	bytes := r.bytes
	for i, ev := range slices.Backward(events) {
		bytes += eventSize(&ev)
		if len(events)-i > room || bytes > r.maxBytes {
			start = ev.Revision
			events = events[i+1:]
			break
		}
	}
	size := 8
	for size < len(events)+len(present) {
		size *= 2
	}
	r.first -= uint64(len(events))
	r.events = make([]Event, size)
	for i, ev := range append(slices.Clip(events), present...) {
		*r.at(r.first + uint64(i)) = ev
		if i < len(events) {
			r.bytes += eventSize(&ev)
		}
	}
	r.start = start
}
