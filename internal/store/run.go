package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"hyperkube/internal/base/lifecycle"
)

// Run updates the caches from an etcd watch and fills collections on demand until ctx is done. It retries failed
// reads and opens a broken watch again, with a delay of up to two seconds. It returns nil, or an error if it was
// called before.
func (s *Store) Run(ctx context.Context) error {
	if s.running.Swap(true) {
		return errors.New("store: already run")
	}
	defer close(s.done)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	// Separate metadata gives the store a dedicated stream to etcd, so that other watches of the
	// same client do not delay progress notifications.
	watchCtx := metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "hyperkube-store", fmt.Sprintf("%p", s))
	established := make(chan struct{})
	wg.Go(func() { s.feed(watchCtx, established) })
	wg.Go(func() {
		s.position.requestProgress(ctx, func(context.Context) error { return s.client.RequestProgress(watchCtx) })
	})
	select {
	case <-established:
	case <-ctx.Done():
		return nil
	}
	free := make(chan struct{}, maxFills)
	for {
		select {
		case <-s.fills:
		case <-ctx.Done():
			return nil
		}
		s.mu.Lock()
		todo := s.toFill
		s.toFill = nil
		s.mu.Unlock()
		for _, c := range todo {
			select {
			case free <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			wg.Go(func() {
				defer func() { <-free }()
				s.fillCollection(ctx, c)
			})
		}
	}
}

// maxFills is the maximum number of collections that are read from etcd concurrently, to limit the
// memory for their responses.
const maxFills = 4

// wantFill adds a collection to those that Run fills from etcd.
func (s *Store) wantFill(c *Collection) {
	s.mu.Lock()
	s.toFill = append(s.toFill, c)
	s.mu.Unlock()
	signal(s.fills)
}

// fillCollection fills the cache of a collection for the first time. It retries, after errors and if events were lost
// meanwhile, until it succeeds, the collection is dropped or ctx is done.
func (s *Store) fillCollection(ctx context.Context, c *Collection) {
	var retry backoff
	began := time.Now()
	for ctx.Err() == nil {
		generation := c.beginFill()
		kvs, revision, err := etcdReader{c}.all(ctx, 0)
		if closed(c.dropped) {
			return
		}
		if err == nil && c.endFill(generation, kvs, revision) {
			if s.onFill != nil {
				s.onFill(c.cfg.Resource.Group, c.cfg.Resource.Resource, time.Since(began))
			}
			return
		}
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("reading resource from etcd into the watch cache failed; requests for this resource wait until a retry succeeds, retrying with back-off", "path", c.cfg.Path, "err", err)
			}
			retry.wait(ctx)
		}
	}
}

// feed updates the caches from an etcd watch on all keys until ctx is done. It opens a broken watch again. If events
// were lost, by a compaction or because etcd was restored from a backup, it reads all filled collections again. It
// closes established when the first watch is open.
func (s *Store) feed(ctx context.Context, established chan struct{}) {
	var retry backoff
	for ctx.Err() == nil {
		err := s.watchOnce(ctx, &established, &retry)
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("etcd watch that updates the watch cache failed; lists and watches may return outdated objects until the watch is open again, retrying with back-off", "revision", s.position.get(), "err", err)
		wentBack := errors.Is(err, errRolledBack)
		if wentBack {
			s.compacted.Store(0) // belongs to another history
		}
		if wentBack || errors.Is(err, rpctypes.ErrCompacted) {
			if err := s.relist(ctx, !wentBack); err != nil && ctx.Err() == nil {
				s.log.Warn("reading all resources from etcd again after the etcd watch has lost events failed; lists and watches return outdated objects until a retry succeeds, retrying with back-off", "err", err)
			}
		}
		retry.wait(ctx)
	}
}

// errRolledBack is returned when etcd has a lower revision than the caches, because it was restored
// from a backup.
var errRolledBack = errors.New("etcd went back to an earlier revision")

// watchOnce opens an etcd watch that starts after the position, and applies its events until it breaks. It returns
// the reason, which is never nil: errRolledBack, or an error of etcd or its client. It closes *established and sets
// it to nil when the first watch is open, and resets retry when the watch works.
func (s *Store) watchOnce(ctx context.Context, established *chan struct{}, retry *backoff) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opts := []clientv3.OpOption{
		clientv3.WithPrefix(), clientv3.WithProgressNotify(), clientv3.WithFragment(), clientv3.WithCreatedNotify(),
	}
	if position := s.position.get(); position > 0 {
		opts = append(opts, clientv3.WithRev(position+1))
	}
	var touched []*Collection
	responses := s.client.Watch(ctx, s.prefix, opts...)
	for {
		var resp clientv3.WatchResponse
		var ok bool
		select {
		case resp, ok = <-responses:
		case <-s.rolledBack:
			return errRolledBack
		}
		if !ok {
			return errors.New("watch closed by the client")
		}
		if err := resp.Err(); err != nil {
			return err
		}
		switch {
		case resp.Created:
			// The first watch starts at the current revision. Nothing has been read so far, and
			// later reads are at least as new.
			if *established != nil {
				s.position.advance(resp.Header.Revision)
				close(*established)
				*established = nil
			}
		case len(resp.Events) > 0:
			retry.reset() // not earlier, because a watch of a compacted revision also opens
			touched = s.take(resp.Events, touched[:0])
		default:
			retry.reset()
			s.position.advance(resp.Header.Revision)
			signal(s.position.responded)
		}
	}
}

// take applies events of the etcd watch to their collections and then advances the position to the last one. It
// ignores keys that belong to no collection. touched is an empty slice, to which take appends the collections that
// have events. The caller passes the result to the next call, emptied, so that its memory is reused.
func (s *Store) take(events []*clientv3.Event, touched []*Collection) []*Collection {
	for _, ev := range events {
		c := s.route(ev.Kv.Key)
		if c == nil {
			continue
		}
		ch := change{key: string(ev.Kv.Key[len(c.prefix):]), revision: ev.Kv.ModRevision}
		if ev.Type == clientv3.EventTypePut {
			ch.value = ev.Kv.Value
			if ch.value == nil {
				ch.value = []byte{}
			}
		}
		if len(c.incoming) == 0 {
			touched = append(touched, c)
		}
		c.incoming = append(c.incoming, ch)
	}
	for _, c := range touched {
		c.received.Add(uint64(len(c.incoming)))
		c.apply(c.incoming)
		clear(c.incoming)
		c.incoming = c.incoming[:0]
	}
	// Do not use the header's revision: there may be more events up to it.
	s.position.advance(events[len(events)-1].Kv.ModRevision)
	return touched
}

// relist reads all filled collections from etcd again at one revision after events were lost, and
// then sets the position to this revision. The position does not change earlier, so that old
// entries are not mistaken for new ones. same is set if etcd has the same history as before;
// entries with an unchanged revision are then kept. If a read fails, some collections may have been
// replaced; the caller must retry.
func (s *Store) relist(ctx context.Context, same bool) error {
	resp, err := s.client.Get(ctx, s.prefix, clientv3.WithKeysOnly())
	if err != nil {
		return etcdError(err)
	}
	revision := resp.Header.Revision
	s.mu.Lock()
	all := make([]*Collection, 0, len(s.collections))
	for _, c := range s.collections {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		if !c.restart() {
			continue
		}
		kvs, _, err := etcdReader{c}.all(ctx, revision)
		if err != nil {
			return err
		}
		c.refill(kvs, revision, same)
	}
	s.position.reset(revision)
	select {
	case <-s.rolledBack: // handled now
	default:
	}
	return nil
}

// restart invalidates a fill in progress, which fillCollection then repeats, because events were
// lost. It reports whether the collection has been filled, so that relist must read it again.
func (c *Collection) restart() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	c.pending = nil
	return c.current != nil
}

// backoff is the delay between attempts to reach etcd. It doubles with each attempt, from 10 ms to
// 2 s.
type backoff struct{ next time.Duration }

// reset makes the next delay the shortest one, after a success.
func (b *backoff) reset() { b.next = 0 }

// wait doubles the delay and waits for it or until ctx is canceled. The first delay is 10 ms, the maximum 2 s.
func (b *backoff) wait(ctx context.Context) {
	b.next = min(max(2*b.next, 10*time.Millisecond), 2*time.Second)
	lifecycle.Pause(ctx, b.next)
}
