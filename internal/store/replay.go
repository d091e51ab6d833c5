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

// replayRevisions is the maximum number of revisions of a replay. etcd reads all revisions since
// its start, including those of other keys.
const replayRevisions = 5000

// replay adds events from before the cache was filled to the ring, so that clients of a previous
// instance of the store can resume their watches. It is done once per collection, and only when a
// client requests a revision that is not far in the past. A failure is not an error: events that
// are not in the ring are treated like compacted ones.
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
	events, start, err := c.readEvents(ctx, max(0, end-replayRevisions), end)
	if err != nil {
		if ctx.Err() != nil {
			// Another caller may have more time.
			c.mu.Lock()
			c.replayed = false
			c.mu.Unlock()
			return fmt.Errorf("reading past events: %w", waitError(ctx))
		}
		c.store.log.Warn("reading past events failed", "path", c.cfg.Path, "err", err)
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

// errNoPrevious is returned when etcd was compacted while past events were read.
var errNoPrevious = errors.New("previous value is compacted")

// readEvents returns all events of the collection in (start, end]. start is since, or later if etcd
// has been compacted in between.
func (c *Collection) readEvents(ctx context.Context, since, end int64) (events []Event, start int64, err error) {
	for {
		events, err = c.watchPast(ctx, since, end)
		var compacted *compactedError
		if !errors.As(err, &compacted) {
			return events, since, err
		}
		// Values at the compacted revision are available, those before are not.
		if compacted.revision <= since || compacted.revision >= end {
			return nil, 0, err
		}
		since = compacted.revision
	}
}

// compactedError contains the revision of the last compaction.
type compactedError struct{ revision int64 }

func (e *compactedError) Error() string { return fmt.Sprintf("compacted at %d", e.revision) }

func (c *Collection) watchPast(ctx context.Context, since, end int64) ([]Event, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Use a separate stream, because progress notifications apply to all watches of a stream.
	ctx = metadata.AppendToOutgoingContext(ctx, "hyperkube-replay", fmt.Sprintf("%p", c))
	responses := c.store.client.Watch(ctx, c.prefix,
		clientv3.WithPrefix(), clientv3.WithRev(since+1), clientv3.WithPrevKV(), clientv3.WithFragment())
	var events []Event
	last := make(map[string]*Entry)
	// etcd does not report progress while a watch catches up, so repeat the request.
	ask := time.NewTicker(progressRetry / 2)
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

// pastEvent converts an event of etcd with the previous value. last contains the latest version of
// each key.
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

// prepend adds events before the present ones, as many of the latest as fit. events must contain
// all events between start and the ring's own start.
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
