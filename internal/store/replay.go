package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// replayRevisions is how far back a replay goes at most. etcd walks through all
// of its revisions since then, whatever they are about.
const replayRevisions = 5000

// replay puts events from before the cache was filled into the ring, so that
// clients of a store that ran before this one keep their places. It is done
// once a collection, and only when somebody asks for a revision that is not
// far back; else nothing happens. Failing is no error: what is not in the ring
// is too old, as etcd's own compaction makes it.
func (c *Collection) replay(ctx context.Context, since int64) error {
	select {
	case c.replaying <- struct{}{}:
		defer func() { <-c.replaying }()
	case <-ctx.Done():
		return waitError(ctx)
	}
	c.mu.Lock()
	end, generation := c.ring.start, c.generation
	// Only a ring that still begins where the cache was filled can grow
	// backwards.
	useful := c.ring.first == c.firstEvent && since < end && since >= end-replayRevisions && !c.replayed
	if useful {
		c.replayed = true
	}
	c.mu.Unlock()
	if !useful {
		return nil
	}
	events, start, err := c.readEvents(ctx, max(0, end-replayRevisions), end)
	if err != nil {
		if ctx.Err() != nil {
			// Another may be more patient.
			c.mu.Lock()
			c.replayed = false
			c.mu.Unlock()
			return fmt.Errorf("reading events of the past: %w", waitError(ctx))
		}
		c.store.log.Warn("cannot read events of the past", "path", c.cfg.Path, "error", err)
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

// errNoPrevious: etcd has been compacted while its past was read.
var errNoPrevious = errors.New("the previous value is compacted")

// readEvents returns all events of the collection in (start, end], with start
// at least since; it is later when etcd has been compacted in between.
func (c *Collection) readEvents(ctx context.Context, since, end int64) (events []Event, start int64, err error) {
	for {
		events, err = c.watchPast(ctx, since, end)
		var compacted *compactedError
		if !errors.As(err, &compacted) {
			return events, since, err
		}
		// Values at the compacted revision are there, those before are not.
		if compacted.revision <= since || compacted.revision >= end {
			return nil, 0, err
		}
		since = compacted.revision
	}
}

// compactedError tells the revision up to which etcd has forgotten.
type compactedError struct{ revision int64 }

func (e *compactedError) Error() string { return fmt.Sprintf("compacted at %d", e.revision) }

func (c *Collection) watchPast(ctx context.Context, since, end int64) ([]Event, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A stream of its own, for progress concerns all watches of a stream.
	ctx = metadata.AppendToOutgoingContext(ctx, "hyperkube-replay", fmt.Sprintf("%p", c))
	responses := c.store.client.Watch(ctx, c.prefix,
		clientv3.WithPrefix(), clientv3.WithRev(since+1), clientv3.WithPrevKV(), clientv3.WithFragment())
	var events []Event
	last := make(map[string]*Entry)
	// etcd tells no progress while a watch catches up, so it is asked again.
	ask := time.NewTicker(progressAgain / 2)
	defer ask.Stop()
	for {
		select {
		case resp, ok := <-responses:
			if !ok {
				return nil, errors.Join(ErrUnavailable, ctx.Err())
			}
			if resp.CompactRevision > 0 {
				return nil, &compactedError{resp.CompactRevision}
			}
			if err := resp.Err(); err != nil {
				return nil, etcdError(err)
			}
			for _, kv := range resp.Events {
				if kv.Kv.ModRevision > end {
					return events, nil
				}
				if c.store.route(kv.Kv.Key) != c {
					continue
				}
				ev, err := c.pastEvent(kv, last)
				if err != nil {
					return nil, err
				}
				events = append(events, ev)
			}
			if n := len(resp.Events); n == 0 && resp.Header.Revision >= end || n > 0 && resp.Events[n-1].Kv.ModRevision >= end {
				return events, nil
			}
		case <-ask.C:
			_ = c.store.client.RequestProgress(ctx)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// pastEvent makes an event of what etcd tells with the previous value. last
// has the version of each key that came last.
func (c *Collection) pastEvent(kv *clientv3.Event, last map[string]*Entry) (Event, error) {
	key := string(kv.Kv.Key[len(c.prefix):])
	ev := Event{Revision: kv.Kv.ModRevision}
	before := last[key]
	delete(last, key)
	if kv.PrevKv != nil && before != nil && before.revision == kv.PrevKv.ModRevision {
		ev.Previous = before
	} else if kv.PrevKv != nil {
		ev.Previous = c.newEntry(key, kv.PrevKv.ModRevision, kv.PrevKv.Value)
	} else if !kv.IsCreate() {
		return ev, fmt.Errorf("%s at %d: %w", kv.Kv.Key, kv.Kv.ModRevision, errNoPrevious)
	}
	if kv.Type == clientv3.EventTypePut {
		if ev.Current = c.Cached(key); ev.Current == nil || ev.Current.revision != kv.Kv.ModRevision {
			ev.Current = c.newEntry(key, kv.Kv.ModRevision, kv.Kv.Value)
		}
		last[key] = ev.Current
	}
	return ev, nil
}

// prepend puts events before those that are there, as many of the last as
// there is room for. All between start and the ring's own start are given.
func (r *ring) prepend(events []Event, start int64) {
	present := make([]Event, 0, r.next-r.first)
	for n := r.first; n < r.next; n++ {
		present = append(present, *r.at(n))
	}
	// Numbers count upwards only; places of watchers that are pending keep
	// their numbers, so the old events go below the first.
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
