package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/apimachinery/pkg/runtime"
)

// Collection is the objects of one resource: the cache of them, their recent
// history and those who watch it.
type Collection struct {
	store *Store
	cfg   CollectionConfig
	// prefix of the full keys, with its slash, e.g. "/registry/pods/".
	prefix string

	// ready is closed when the cache has been filled for the first time.
	ready chan struct{}
	// wanted is set by the first who asks for the cache to be filled.
	wanted sync.Once
	// dropped is closed when the collection has been dropped from the store.
	dropped chan struct{}

	// replaying has room for the one who reads events of the past.
	replaying chan struct{}

	// received counts the events from etcd, reads those for which the cache was
	// brought up to what etcd had, fills how often it was filled.
	received, reads, fills atomic.Uint64
	// cacheLists and etcdLists are those from there; slow are watchers that were
	// ended because they fell behind.
	cacheLists, etcdLists lists
	slow                  atomic.Uint64
	// incoming belongs to the goroutine that feeds the store.
	incoming []change

	// view is a snapshot of current, nil when that has changed since.
	view atomic.Pointer[view]

	// mu guards what follows. It is never held while something blocks.
	mu sync.Mutex
	// current has the entries; nil until it has been filled.
	current *contents
	// revision of the last change in current, or at which it was filled.
	revision int64
	// filling: changes go to pending until the fill has been installed.
	filling bool
	pending []change
	// generation counts fills that must begin anew; see refill.
	generation int
	ring       ring
	watchers   watcherIndex
	// past are snapshots for reads at exact revisions, oldest use first.
	past []pastView
	// firstEvent is the number of the ring's first event while nothing has
	// been evicted; replayed: events from before it have been asked for.
	firstEvent uint64
	replayed   bool
}

// view is a snapshot: nobody writes to its contents.
type view struct {
	*contents
	// revision of the last change in it. It is what the collection was until
	// the next change of it.
	revision int64
}

// change is an event as etcd tells it.
type change struct {
	key      string
	revision int64
	// value is nil when the key was deleted.
	value []byte
}

func newCollection(s *Store, cfg CollectionConfig) *Collection {
	c := &Collection{
		store:     s,
		cfg:       cfg,
		prefix:    s.prefix + cfg.Path + "/",
		ready:     make(chan struct{}),
		dropped:   make(chan struct{}),
		replaying: make(chan struct{}, 1),
	}
	c.ring.first, c.ring.next = firstNumber, firstNumber
	c.ring.maxEvents = s.history
	c.ring.maxBytes = historyBytes
	return c
}

// Create, Update and Delete make operations for Commit. Object is owned by the
// store from then on and must not be written to; its resourceVersion is
// ignored. Expect is the entry that the change was made from. TTL is in
// seconds, zero for none (upstream uses it for events).
func (c *Collection) Create(key string, object runtime.Object, ttl int64) Op {
	return Op{collection: c, key: key, object: object, ttl: ttl}
}

// Update replaces expect by object. When that would store the very same bytes,
// Commit writes nothing, but still makes sure that expect is what etcd has, and
// returns expect. The ttl does not start anew then, as in upstream.
func (c *Collection) Update(expect *Entry, object runtime.Object, ttl int64) Op {
	return Op{collection: c, key: expect.key, object: object, expect: expect.revision, ttl: ttl, from: expect}
}

// Delete removes expect.
func (c *Collection) Delete(expect *Entry) Op {
	return Op{collection: c, key: expect.key, expect: expect.revision}
}

// FullKey is where etcd has the entry of a key.
func (c *Collection) FullKey(key string) string { return c.prefix + key }

// PathOf is FullKey without the store's prefix, with its slash.
func (c *Collection) PathOf(key string) string {
	return "/" + strings.TrimPrefix(c.prefix+key, c.store.prefix)
}

// Ready is closed once the cache has been filled.
func (c *Collection) Ready() <-chan struct{} { return c.ready }

// Store is what the collection is in.
func (c *Collection) Store() *Store { return c.store }

// Warm begins to fill the cache, if nobody has asked for it yet.
func (c *Collection) Warm() { c.wanted.Do(func() { c.store.wantFill(c) }) }

func (c *Collection) filled() bool {
	select {
	case <-c.ready:
		return true
	default:
		return false
	}
}

// Len returns how many entries the cache has.
func (c *Collection) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return 0
	}
	return c.current.entries.Len()
}

// sampled is over how many entries Stats takes the mean.
const sampled = 16

// Stats tells how many entries the cache has and about how many bytes each of
// them takes in etcd; false when the cache has not been filled.
func (c *Collection) Stats() (count, size int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil || !c.filled() {
		return 0, 0, false
	}
	n, total := 0, 0
	c.current.entries.Ascend(func(e *Entry) bool {
		n, total = n+1, total+e.size
		return n < sampled
	})
	return c.current.entries.Len(), total / max(n, 1), true
}

// Counts are how often something has happened.
type Counts struct {
	// Received are the events that have come from etcd, Reads those reads from
	// the cache that had to see all that was written before, Fills how often
	// the cache was filled.
	Received, Reads, Fills uint64
	// Cache and Etcd are lists that were answered from there. Slow are watchers that
	// fell behind what is remembered and were ended.
	Cache, Etcd Lists
	Slow        uint64
	// Capacity is for how many recent events there is room now.
	Capacity int
}

// Lists are so many that were answered from one place, for which so many objects were
// Looked at, of these so many by a Match, and so many Told.
type Lists struct{ Total, Looked, Matched, Told uint64 }

// lists are Lists that are being counted.
type lists struct{ total, looked, matched, told atomic.Uint64 }

func (l *lists) add(looked, told int, matched bool) {
	l.total.Add(1)
	l.looked.Add(uint64(looked))
	if matched {
		l.matched.Add(uint64(looked))
	}
	l.told.Add(uint64(told))
}

func (l *lists) load() Lists {
	return Lists{Total: l.total.Load(), Looked: l.looked.Load(), Matched: l.matched.Load(), Told: l.told.Load()}
}

// Counts returns what has happened so far.
func (c *Collection) Counts() Counts {
	c.mu.Lock()
	capacity := len(c.ring.events)
	c.mu.Unlock()
	return Counts{
		Received: c.received.Load(), Reads: c.reads.Load(), Fills: c.fills.Load(),
		Cache: c.cacheLists.load(), Etcd: c.etcdLists.load(), Slow: c.slow.Load(), Capacity: capacity,
	}
}

// Revision is that up to which the cache of the store is.
func (s *Store) Revision() int64 { return s.position.get() }

// Cached returns the cache's entry without any wait, nil if there is none (or
// the cache has not been filled). It may be stale: writes made from it fail
// with ErrConflict then, which carries the current one.
func (c *Collection) Cached(key string) *Entry {
	if v := c.view.Load(); v != nil {
		return v.get(key)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return nil
	}
	return c.current.get(key)
}

// Get returns an entry. Revision is as in ListOptions; ErrNotFound if there is
// none.
func (c *Collection) Get(ctx context.Context, key string, revision int64) (*Entry, error) {
	if err := c.reach(ctx, revision); err != nil {
		return nil, fmt.Errorf("getting %s %q: %w", c.cfg.Resource, key, err)
	}
	if e := c.Cached(key); e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("%s %q: %w", c.cfg.Resource, key, ErrNotFound)
}

// isDropped tells whether the store has dropped the collection.
func (c *Collection) isDropped() bool {
	select {
	case <-c.dropped:
		return true
	default:
		return false
	}
}

// fill waits until the cache has been filled.
func (c *Collection) fill(ctx context.Context) error {
	if c.isDropped() {
		return ErrStopped
	}
	if c.filled() {
		return nil
	}
	c.Warm()
	select {
	case <-c.ready:
		return nil
	case <-c.dropped:
		return ErrStopped
	case <-c.store.done:
		return ErrStopped
	case <-ctx.Done():
		return fmt.Errorf("waiting for the cache: %w", waitError(ctx))
	}
}

// reach waits until the cache is as new as revision asks, which is as in
// ListOptions.
func (c *Collection) reach(ctx context.Context, revision int64) error {
	if err := c.fill(ctx); err != nil {
		return err
	}
	switch {
	case revision == 0:
		return nil
	case revision < 0:
		current, err := c.store.currentRevision(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := c.store.position.wait(ctx, current); err != nil {
			return err
		}
		if c.isDropped() {
			return ErrStopped // it may have been before it was as new as that
		}
		if c.store.waited != nil {
			c.store.waited(c.cfg.Resource.Group, c.cfg.Resource.Resource, time.Since(began))
		}
		c.reads.Add(1)
		return nil
	default:
		return c.store.waitAsked(ctx, revision)
	}
}

// snapshot returns the current entries and the revision at which they are
// that. The cache must have been filled.
func (c *Collection) snapshot() (*view, int64) {
	// The position is read first: everything up to it is in the tree then.
	position := c.store.position.get()
	v := c.view.Load()
	if v == nil {
		c.mu.Lock()
		v = c.viewLocked()
		c.mu.Unlock()
	}
	return v, max(position, v.revision)
}

func (c *Collection) viewLocked() *view {
	v := c.view.Load()
	if v == nil {
		v = &view{contents: c.current.clone(), revision: c.revision}
		c.view.Store(v)
	}
	return v
}

// apply takes in changes, in the order of their revisions.
func (c *Collection) apply(changes []change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.filling:
		c.pending = append(c.pending, changes...)
	case c.current != nil:
		c.applyLocked(changes)
	}
}

func (c *Collection) applyLocked(changes []change) {
	since := c.revision
	changed := false
	for _, ch := range changes {
		if ch.revision <= since {
			continue // the fill was newer
		}
		ev := Event{Revision: ch.revision}
		if ch.value == nil {
			ev.Previous = c.current.remove(ch.key)
			if ev.Previous == nil {
				continue
			}
		} else {
			ev.Current = c.store.own.claim(c, ch)
			ev.Previous = c.current.put(ev.Current)
		}
		changed = true
		c.revision = ch.revision
		c.watchers.notify(c.ring.add(ev), ch.key, &ev)
	}
	if !changed {
		return
	}
	c.view.Store(nil)
	if len(c.past) > 0 {
		c.prunePast()
	}
}

// beginFill makes changes wait for the entries that are now read from etcd.
func (c *Collection) beginFill() (generation int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.filling = true
	c.pending = nil
	return c.generation
}

// endFill installs what was read at revision. It returns false when that is
// of no use, because events were lost meanwhile.
func (c *Collection) endFill(generation int, kvs []*mvccpb.KeyValue, revision int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.generation != generation {
		return false
	}
	c.install(kvs, revision)
	c.filling = false
	pending := c.pending
	c.pending = nil
	c.applyLocked(pending)
	close(c.ready)
	return true
}

// refill replaces all entries after events were lost. Whoever watches loses
// its place, for what happened in between is not known any more. Entries of the
// same history are kept.
func (c *Collection) refill(kvs []*mvccpb.KeyValue, revision int64, same bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !same {
		c.current = nil // others may have the same keys and revisions
	}
	c.install(kvs, revision)
	c.past = nil
	c.watchers.fail(ErrTooOld)
}

func (c *Collection) install(kvs []*mvccpb.KeyValue, revision int64) {
	c.fills.Add(1)
	old := c.current
	c.current = c.newContents()
	for _, kv := range kvs {
		key := string(kv.Key[len(c.prefix):])
		if old != nil {
			if e := old.get(key); e != nil && e.revision == kv.ModRevision {
				c.current.put(e)
				continue
			}
		}
		c.current.put(c.newEntry(key, kv.ModRevision, kv.Value))
	}
	c.revision = revision
	c.ring.reset(revision)
	c.firstEvent, c.replayed = c.ring.first, false
	c.view.Store(nil)
}

// read gets all entries from etcd, at a revision or with zero at the current
// one, and returns which one that was. Large collections come in pieces.
func (c *Collection) read(ctx context.Context, revision int64) ([]*mvccpb.KeyValue, int64, error) {
	var kvs []*mvccpb.KeyValue
	from := c.prefix
	for {
		resp, err := c.store.getRange(ctx, c, from, rangeEnd(c.prefix), revision, readPiece)
		if err != nil {
			return nil, 0, fmt.Errorf("reading %s: %w", c.prefix, etcdError(err))
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			if c.store.route(kv.Key) == c {
				kvs = append(kvs, kv)
			}
		}
		if !resp.More || len(resp.Kvs) == 0 {
			return kvs, revision, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// readPiece is how many keys are read from etcd at once.
const readPiece = 2000

// rangeEnd is the first key after all those that begin with prefix, which ends
// with a slash.
func rangeEnd(prefix string) string { return strings.TrimSuffix(prefix, "/") + "0" }

// waitError tells why a wait ended with ctx.
func waitError(ctx context.Context) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}
