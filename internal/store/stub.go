package store

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
)

// Store is one etcd and all collections in it.
type Store struct{}

// New validates cfg. Collections are added before or while Run runs.
func New(cfg Config) (*Store, error) { panic("not yet") }

// Run keeps the caches fed until ctx ends. A broken watch is resumed; it fails
// only on what no retry can mend.
func (s *Store) Run(ctx context.Context) error { panic("not yet") }

// Collection returns the collection of a resource, adding it at first use; the
// same Path must come with the same configuration. Its cache fills when it is
// first read or watched, or at once if warm.
func (s *Store) Collection(cfg CollectionConfig) *Collection { panic("not yet") }

// Commit runs ops as one etcd transaction: all or none. No two ops may be of
// one collection. The returned entries are in the order of ops, nil for
// deletions; revision is that of the transaction. A lost race is a
// *ConflictError. Nothing is returned before etcd has synced it to disk.
func (s *Store) Commit(ctx context.Context, ops ...Op) (entries []*Entry, revision int64, err error) {
	panic("not yet")
}

// Healthy returns nil when etcd answers a linearizable read.
func (s *Store) Healthy(ctx context.Context) error { panic("not yet") }

func (s *Store) currentRevision(ctx context.Context) (int64, error) { panic("not yet") }

// Collection is the objects of one resource.
type Collection struct{}

// Create, Update and Delete make operations for Commit. Object is owned by the
// store from then on and must not be written to; its resourceVersion is
// ignored. Expect is the entry that the change was made from. TTL is in
// seconds, zero for none (upstream uses it for events).
func (c *Collection) Create(key string, object runtime.Object, ttl int64) Op { panic("not yet") }

// Update replaces expect by object.
func (c *Collection) Update(expect *Entry, object runtime.Object, ttl int64) Op { panic("not yet") }

// Delete removes expect.
func (c *Collection) Delete(expect *Entry) Op { panic("not yet") }

// Get returns an entry. Revision is as in ListOptions; ErrNotFound if there is
// none.
func (c *Collection) Get(ctx context.Context, key string, revision int64) (*Entry, error) {
	panic("not yet")
}

// Cached returns the cache's entry without any wait, nil if there is none (or
// the cache has not been filled). It may be stale: writes made from it fail
// with ErrConflict then, which carries the current one.
func (c *Collection) Cached(key string) *Entry { panic("not yet") }

// List returns a consistent page.
func (c *Collection) List(ctx context.Context, opts ListOptions) (*Page, error) { panic("not yet") }

// Watch begins a watch. ErrTooOld when the ring no longer has the events after
// opts.Since. The watcher must be closed.
func (c *Collection) Watch(ctx context.Context, opts WatchOptions) (*Watcher, error) {
	panic("not yet")
}

// Ready is closed once the cache has been filled.
func (c *Collection) Ready() <-chan struct{} { panic("not yet") }

// Len returns how many entries the cache has.
func (c *Collection) Len() int { panic("not yet") }

// Entry is one stored version of one object. It is immutable and shared.
type Entry struct{}

// Key below the collection, e.g. "default/web".
func (e *Entry) Key() string { panic("not yet") }

// Revision of the last write: the object's resourceVersion.
func (e *Entry) Revision() int64 { panic("not yet") }

// Object returns the decoded object, decoding it at first use. It is shared:
// nobody may write to it.
func (e *Entry) Object() (runtime.Object, error) { panic("not yet") }

// Bytes returns what Codec.Encode made, decrypted; nobody may write to it. It
// does not have the resourceVersion.
func (e *Entry) Bytes() []byte { panic("not yet") }

// Memo returns a value derived from the entry, made once by make and then
// shared, such as its JSON. The cache may drop it at any time. slot is a small
// number that tells uses apart, size the bytes to count for it.
func (e *Entry) Memo(slot int, make func() ([]byte, error)) ([]byte, error) { panic("not yet") }

// Watcher is a place in a collection's history.
type Watcher struct{}

// Next blocks until there is something after the watcher's place, or progress
// was asked for, or ctx ends. ErrTooOld when the watcher was too slow and its
// place is gone from the ring: the watch is over then. It is for one goroutine.
func (w *Watcher) Next(ctx context.Context) (Batch, error) { panic("not yet") }

// RequestProgress makes Next return soon, with no events if there are none but
// with a Revision at least as new as etcd's when this was called. Safe from
// any goroutine.
func (w *Watcher) RequestProgress() { panic("not yet") }

// Close ends the watch and frees its place. Safe from any goroutine and more
// than once.
func (w *Watcher) Close() { panic("not yet") }
