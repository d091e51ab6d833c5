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

// Collection contains the objects of one resource: their cache, their recent history and their watchers. Its methods
// are safe for concurrent use.
type Collection struct {
	store *Store
	cfg   CollectionConfig
	// prefix of the full keys, with a trailing slash, e.g. "/registry/pods/".
	prefix string

	// ready is closed when the cache has been filled for the first time.
	ready chan struct{}
	// fillOnce starts the fill of the cache on first use.
	fillOnce sync.Once
	// dropped is closed when the collection has been dropped from the store.
	dropped chan struct{}

	// replaying is a semaphore of one. The goroutine that reads past events from etcd holds it (see
	// replay).
	replaying chan struct{}

	counters
	// incoming is used only by the goroutine that feeds the store.
	incoming []change

	// view is a snapshot of current. It is nil if current has changed since.
	view atomic.Pointer[view]

	// mu guards the fields below. It is never held during blocking operations.
	mu sync.Mutex
	// current contains the entries. It is nil until the cache is filled.
	current *contents
	// revision is the revision of the last change in current, or of the fill.
	revision int64
	fillState
	ring     ring
	watchers watcherIndex
	past     pastViews
	// firstEvent is the number of the first event in the ring as long as none was evicted. replayed
	// is set when earlier events have been requested from etcd.
	firstEvent uint64
	replayed   bool
}

// fillState is the state of filling the cache of a collection from etcd for the first time. The collection's lock
// guards it.
type fillState struct {
	// filling is set while the collection is read from etcd. Changes are appended to pending until
	// then.
	filling bool
	pending []change
	// generation is incremented when a fill in progress must be repeated; see restart.
	generation int
}

// view is a snapshot of the entries of a collection, and their indexes, at one revision. It is shared between readers
// and must not be modified.
type view struct {
	*contents
	// revision is the revision of the last change in the snapshot. The snapshot is valid until the
	// next change of the collection.
	revision int64
}

// change is a change of one key that the etcd watch has reported.
type change struct {
	key      string
	revision int64
	// value is nil when the key was deleted.
	value []byte
}

// newCollection returns a collection of the store s whose cache is not filled yet. cfg.Path has no leading or
// trailing slash.
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

// Create returns an operation for Commit that creates an object. The transaction fails with a ConflictError
// (ErrExists) if the key exists. As with Update and Delete, the store owns object from then on, so it must not be
// modified; its resourceVersion must be empty. ttl is the time in seconds after which etcd deletes the object, zero
// for never (events have one).
func (c *Collection) Create(key string, object runtime.Object, ttl int64) Op {
	return Op{collection: c, key: key, object: object, ttl: ttl}
}

// Update returns an operation for Commit that replaces expect, the entry that the change was made from, by object.
// The transaction fails with a ConflictError if the key has changed since expect was read. If the stored bytes would
// be the same, Commit does not write, but still checks that expect is the current entry in etcd, and returns expect.
// As in upstream, the ttl is not renewed then.
func (c *Collection) Update(expect *Entry, object runtime.Object, ttl int64) Op {
	return Op{collection: c, key: expect.key, object: object, expect: expect.revision, ttl: ttl, from: expect}
}

// Delete returns an operation for Store.Commit that deletes the key of the entry expect. The
// transaction fails with a ConflictError if the key has changed since expect was read.
func (c *Collection) Delete(expect *Entry) Op {
	return Op{collection: c, key: expect.key, expect: expect.revision}
}

// FullKey returns the etcd key of the entry with the key, e.g. "/registry/pods/default/web" for "default/web".
func (c *Collection) FullKey(key string) string { return c.prefix + key }

// PathOf returns the etcd key of an entry without the store's prefix, but with a leading slash, e.g.
// "/pods/default/web" for "/registry/pods/default/web".
func (c *Collection) PathOf(key string) string {
	return "/" + strings.TrimPrefix(c.prefix+key, c.store.prefix)
}

// Ready returns a channel that is closed when the cache has been filled for the first time. The
// fill starts with the first read, watch or call of Warm.
func (c *Collection) Ready() <-chan struct{} { return c.ready }

// Store returns the store that contains the collection.
func (c *Collection) Store() *Store { return c.store }

// Warm starts to fill the cache in the background, if that has not happened yet. Callers use it so that the first
// read does not have to wait. Nothing is filled before Store.Run runs.
func (c *Collection) Warm() { c.fillOnce.Do(func() { c.store.wantFill(c) }) }

// Len returns the number of entries in the cache, which is 0 before it is filled.
func (c *Collection) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return 0
	}
	return c.current.entries.Len()
}

// sampleSize is the number of entries from which Stats computes the mean size.
const sampleSize = 16

// Stats returns the number of entries in the cache and their approximate mean size in etcd, in bytes, from the first
// 16 entries. ok is false if the cache has not been filled.
func (c *Collection) Stats() (count, size int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil || !closed(c.ready) {
		return 0, 0, false
	}
	n, total := 0, 0
	c.current.entries.Ascend(func(e *Entry) bool {
		n, total = n+1, total+e.size
		return n < sampleSize
	})
	return c.current.entries.Len(), total / max(n, 1), true
}

// Revision returns the etcd revision up to which all filled caches of the store are complete. It is 0 before Run has
// opened its watch.
func (s *Store) Revision() int64 { return s.position.get() }

// Cached returns the entry in the cache without waiting. It returns nil if there is none or the
// cache has not been filled. The entry may be stale; a write based on it then fails with a
// *ConflictError: ErrConflict with the current entry, or ErrNotFound without one if the object was deleted.
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

// Get returns an entry from the cache, or ErrNotFound if there is none. It waits until the cache is filled and
// includes revision. Like ListOptions.Revision, zero does not wait further, and a negative revision waits for all
// writes that were committed before the call. It returns ErrTooNew if a positive revision is not reached within three
// seconds, and ErrStopped if the store stops or the collection is dropped.
func (c *Collection) Get(ctx context.Context, key string, revision int64) (*Entry, error) {
	if err := c.waitForRevision(ctx, revision); err != nil {
		return nil, fmt.Errorf("getting %s %q: %w", c.cfg.Resource, key, err)
	}
	if e := c.Cached(key); e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("%s %q: %w", c.cfg.Resource, key, ErrNotFound)
}

// closed reports whether the channel c, on which nothing is ever sent, was closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// fill starts to fill the cache if needed, and waits until it is filled. It returns ErrStopped if the collection is
// dropped or the store stops first, and the error of ctx if that is done first.
func (c *Collection) fill(ctx context.Context) error {
	if closed(c.dropped) {
		return ErrStopped
	}
	if closed(c.ready) {
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

// waitForRevision waits until the cache is filled and includes revision, which has the meaning of
// ListOptions.Revision: zero does not wait further, a negative value waits for all writes before the call. It returns
// ErrTooNew if a positive revision is not reached in time, ErrStopped if the store stops or the collection is
// dropped, and ErrUnavailable if etcd does not return its revision.
func (c *Collection) waitForRevision(ctx context.Context, revision int64) error {
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
		if closed(c.dropped) {
			return ErrStopped // the cache may not have reached the revision before it was dropped
		}
		if c.store.onWait != nil {
			c.store.onWait(c.cfg.Resource.Group, c.cfg.Resource.Resource, time.Since(began))
		}
		c.reads.Add(1)
		return nil
	default:
		return c.store.waitForRequested(ctx, revision)
	}
}

// snapshot returns a view of the entries, and the revision at which the view is consistent. That
// can be later than the revision of the collection's last change. The cache must have been filled.
func (c *Collection) snapshot() (*view, int64) {
	// Read the position first: the entries then include everything up to it.
	position := c.store.position.get()
	v := c.view.Load()
	if v == nil {
		c.mu.Lock()
		v = c.viewLocked()
		c.mu.Unlock()
	}
	return v, max(position, v.revision)
}

// viewLocked returns the current snapshot and creates it if the collection has changed since the
// last one. The caller holds mu.
func (c *Collection) viewLocked() *view {
	v := c.view.Load()
	if v == nil {
		v = &view{contents: c.current.clone(), revision: c.revision}
		c.view.Store(v)
	}
	return v
}

// apply adds changes from the etcd watch, sorted by revision, to the cache and the history, and notifies watchers.
// While the cache is being filled, it only records them for endFill. It ignores them if the cache is neither filled
// nor being filled.
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

// applyLocked applies changes that are later than the collection's revision; earlier ones are already in the cache.
// It ignores deletions of keys that the cache does not contain. The caller holds mu, and the cache is filled.
func (c *Collection) applyLocked(changes []change) {
	since := c.revision
	changed := false
	for _, ch := range changes {
		if ch.revision <= since {
			continue // included in the fill
		}
		ev := Event{Revision: ch.revision}
		if ch.value == nil {
			ev.Previous = c.current.remove(ch.key)
			if ev.Previous == nil {
				continue
			}
		} else {
			ev.Current = c.store.pending.claim(c, ch)
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
		c.past.prune(c.ring.start)
	}
}

// beginFill starts to record changes while the caller reads all entries from etcd; it drops those recorded before. It
// returns the number of times that events were lost (generation), which the caller passes to endFill.
func (c *Collection) beginFill() (generation int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.filling = true
	c.pending = nil
	return c.generation
}

// endFill puts the entries kvs, which were read from etcd at revision, into the cache, applies the changes recorded
// since beginFill, and closes ready. It returns false and changes nothing if events were lost or the collection was
// dropped since beginFill returned generation; the caller must then read the entries again.
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

// refill replaces all entries by kvs, read from etcd at revision, after events were lost. All
// watches of the collection fail with ErrTooOld, because the changes in between are unknown. If
// same is set, etcd has the same history as before, and entries with an unchanged revision are
// kept.
func (c *Collection) refill(kvs []*mvccpb.KeyValue, revision int64, same bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !same {
		c.current = nil // other objects may have the same keys and revisions
	}
	c.install(kvs, revision)
	c.past = nil
	c.watchers.fail(ErrTooOld)
}

// install replaces the entries by kvs, which were read at revision, and empties the history. It keeps current entries
// whose revision is unchanged, because their decoded objects can be reused. The caller holds mu.
func (c *Collection) install(kvs []*mvccpb.KeyValue, revision int64) {
	c.fills.Add(1)
	old := c.current
	c.current = newContents(len(c.cfg.indexes()), c.store.nodes)
	for _, kv := range kvs {
		key := string(kv.Key[len(c.prefix):])
		if old != nil {
			if e := old.get(key); e != nil && e.revision == kv.ModRevision {
				c.current.put(e)
				continue
			}
		}
		c.current.put(newEntry(c, key, kv.ModRevision, kv.Value))
	}
	c.revision = revision
	c.ring.reset(revision)
	c.firstEvent, c.replayed = c.ring.first, false
	c.view.Store(nil)
}

// waitError returns the error of a wait that ctx has interrupted. An exceeded deadline also wraps ErrUnavailable,
// because the wait depends on etcd.
func waitError(ctx context.Context) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}
