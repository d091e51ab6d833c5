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

	"hyperkube/internal/lifecycle"
)

// Run keeps the caches fed until ctx ends. A broken watch is resumed; it fails
// only on what no retry can mend.
func (s *Store) Run(ctx context.Context) error {
	if s.running.Swap(true) {
		return errors.New("store: already run")
	}
	defer close(s.done)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	// Its own metadata gives the store its own stream to etcd, so that
	// progress is not held up by others' watches on the same client.
	watchCtx := metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "hyperkube-store", fmt.Sprintf("%p", s))
	established := make(chan struct{})
	wg.Go(func() { s.feed(watchCtx, established) })
	wg.Go(func() {
		s.position.askProgress(ctx, func(context.Context) error { return s.client.RequestProgress(watchCtx) })
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

// maxFills is how many collections are read from etcd at the same time.
const maxFills = 4

func (s *Store) wantFill(c *Collection) {
	s.mu.Lock()
	s.toFill = append(s.toFill, c)
	s.mu.Unlock()
	signal(s.fills)
}

// fillCollection reads a collection for the first time, until that works.
func (s *Store) fillCollection(ctx context.Context, c *Collection) {
	var retry backoff
	began := time.Now()
	for ctx.Err() == nil {
		generation := c.beginFill()
		kvs, revision, err := c.read(ctx, 0)
		if c.isDropped() {
			return
		}
		if err == nil && c.endFill(generation, kvs, revision) {
			if s.filled != nil {
				s.filled(c.cfg.Resource.Group, c.cfg.Resource.Resource, time.Since(began))
			}
			return
		}
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("cannot read a collection", "path", c.cfg.Path, "error", err)
			}
			retry.wait(ctx)
		}
	}
}

// feed keeps a watch on all keys until ctx ends, and closes established when
// the first is open.
func (s *Store) feed(ctx context.Context, established chan struct{}) {
	var retry backoff
	for ctx.Err() == nil {
		err := s.watchOnce(ctx, &established, &retry)
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("the watch on etcd broke", "revision", s.position.get(), "error", err)
		wentBack := errors.Is(err, errWentBack)
		if wentBack {
			s.forgotten.Store(0) // that was another history
		}
		if wentBack || errors.Is(err, rpctypes.ErrCompacted) {
			if err := s.relist(ctx, !wentBack); err != nil && ctx.Err() == nil {
				s.log.Warn("cannot read all collections anew", "error", err)
			}
		}
		retry.wait(ctx)
	}
}

// errWentBack: etcd is not the one any more that the caches were fed from.
var errWentBack = errors.New("etcd went back to an earlier revision")

// watchOnce opens a watch after the position and feeds from it until it ends.
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
		case <-s.wentBack:
			return errWentBack
		}
		if !ok {
			return errors.New("closed by the client")
		}
		if err := resp.Err(); err != nil {
			return err
		}
		switch {
		case resp.Created:
			// A first watch begins with whatever comes after it. Nothing has
			// been read so far: what is read next is at least as new.
			if *established != nil {
				s.position.advance(resp.Header.Revision)
				close(*established)
				*established = nil
			}
		case len(resp.Events) > 0:
			retry.reset() // not before: one of what is compacted opens too
			touched = s.take(resp.Events, touched[:0])
		default:
			retry.reset()
			s.position.advance(resp.Header.Revision)
			signal(s.position.answered)
		}
	}
}

// take gives events to their collections and then publishes the position.
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
	// Not the header's revision: there may be more events up to that.
	s.position.advance(events[len(events)-1].Kv.ModRevision)
	return touched
}

// relist reads all filled collections anew after events were lost, at one
// revision, which then is the position. Until then the position stays, so that
// nobody takes the old entries for new ones. Where the history is the same, entries
// that are there are kept: what has their revision are they.
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
		kvs, _, err := c.read(ctx, revision)
		if err != nil {
			return err
		}
		c.refill(kvs, revision, same)
	}
	s.position.reset(revision)
	select {
	case <-s.wentBack: // that has been seen to
	default:
	}
	return nil
}

// restart tells whether the collection has been filled. If it is just being
// filled, that begins anew.
func (c *Collection) restart() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	c.pending = nil
	return c.current != nil
}

// backoff waits longer each time, from 10 ms to 2 s.
type backoff struct{ next time.Duration }

func (b *backoff) reset() { b.next = 0 }

func (b *backoff) wait(ctx context.Context) {
	b.next = min(max(2*b.next, 10*time.Millisecond), 2*time.Second)
	lifecycle.Pause(ctx, b.next)
}
