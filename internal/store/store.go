// Package store keeps API objects in etcd and in memory: transactions,
// revisions, consistent lists and watches. It knows neither HTTP nor kinds:
// each resource is a Collection with a Codec.
//
// The contract (see docs/store.md). One etcd watch on the whole prefix feeds
// every collection. An Entry is a key, a revision, the stored bytes and, once
// someone needs it, the decoded object; all of it immutable and shared. Events
// of one revision are published together. Reads that need a revision which the
// cache has not reached ask etcd for progress and are woken by it. A slow
// watcher is never waited for: it loses its place and gets ErrTooOld.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

// Errors of this package; all are wrapped with the key.
var (
	// ErrNotFound: no such key.
	ErrNotFound = errors.New("not found")
	// ErrExists: Create found the key taken.
	ErrExists = errors.New("already exists")
	// ErrConflict: an operation expected another revision of its key than
	// etcd has.
	ErrConflict = errors.New("revision conflict")
	// ErrTooOld: the revision is compacted, or out of the ring's reach.
	ErrTooOld = errors.New("too old resource version")
	// ErrTooNew: the revision has not been reached yet within the deadline.
	ErrTooNew = errors.New("too large resource version")
)

// Codec encodes and decodes the objects of one collection.
type Codec interface {
	// Encode returns the bytes to store, e.g. protobuf behind "k8s\0". The
	// object must have no resourceVersion set.
	Encode(obj runtime.Object) ([]byte, error)
	// Decode is Encode's reverse: a new object, defaulted, with its
	// resourceVersion set to revision.
	Decode(data []byte, revision int64) (runtime.Object, error)
}

// Trimmer is what a Codec may do besides.
type Trimmer interface {
	// DecodeTrimmed is Decode without what those can do without who keep many
	// objects and write none of them back as they are.
	DecodeTrimmed(data []byte, revision int64) (runtime.Object, error)
}

// Config of a Store.
type Config struct {
	// Client of etcd, over the network or in process.
	Client *clientv3.Client
	// Prefix of all keys, "/registry" by default.
	Prefix string
	// History is how many recent events a collection remembers at most for
	// watches from older revisions; zero means 4096.
	History int
	// Observe, unless nil, is told of each request to etcd about the objects of
	// a resource: get, list, create, update or delete. It is called by several
	// goroutines and must be quick.
	Observe func(operation, group, resource string, took time.Duration, err error)
	// Waited, unless nil, is told how long reads that must see all that was
	// written before waited for the cache to have it. It is called by several
	// goroutines and must be quick.
	Waited func(group, resource string, took time.Duration)
	// Filled, unless nil, is told how long it took until the cache of a resource
	// had all that there is, and Leased how many objects were given a lease that is
	// given to no more. Both are called by several goroutines and must be quick.
	Filled func(group, resource string, took time.Duration)
	Leased func(objects int)
	// Log receives what goes wrong in the background. Nil: nothing.
	Log *slog.Logger
}

// CollectionConfig describes the objects of one resource.
type CollectionConfig struct {
	Resource schema.GroupResource
	// Path below the store's prefix, without slashes around it.
	Path  string
	Codec Codec
	// Transformer encrypts what is stored; nil stores as is.
	Transformer value.Transformer
	// Indexes by which lists and watches find their entries. What is encrypted
	// is not indexed.
	Indexes []Index
}

// Index is something that many ask for by its value, such as the pods of a node.
type Index struct {
	Name string
	// Of returns the value of an entry, always the same one. It is called for
	// every change, with the collection locked, so it must be quick.
	Of func(*Entry) string
}

// Op is one operation of a transaction. Make it with the methods of
// Collection.
type Op struct {
	collection *Collection
	key        string
	object     runtime.Object // nil: delete
	expect     int64          // 0: must not exist; >0: that mod revision
	ttl        int64          // seconds; 0: none
	from       *Entry         // what expect is the revision of, for updates
}

// Store is where the operation is to be committed.
func (o Op) Store() *Store { return o.collection.store }

// Key of the operation, below its collection.
func (o Op) Key() string { return o.key }

// ConflictError tells which operation of a transaction failed and what stands
// there instead. It wraps ErrConflict, ErrExists or ErrNotFound.
type ConflictError struct {
	Resource schema.GroupResource
	Key      string
	// Current is what etcd has at the key, nil if nothing.
	Current *Entry
	Err     error
}

func (e *ConflictError) Error() string { return fmt.Sprintf("%s %q: %v", e.Resource, e.Key, e.Err) }
func (e *ConflictError) Unwrap() error { return e.Err }

// Event is a change of one key. Of Current and Previous at least one is not
// nil: Current is nil when the key was deleted, Previous when it was created.
// For a deletion Previous has the revision of the last write, and Revision is
// that of the deletion.
type Event struct {
	Revision          int64
	Current, Previous *Entry
}

// WatchOptions of Collection.Watch.
type WatchOptions struct {
	// Since is the revision after which events are wanted; those after it
	// are delivered without a gap or an error says so. Zero: from now on.
	Since int64
	// Prefix of keys, "" for all, "ns/" for a namespace.
	Prefix string
	// Key, when set, is the only key wanted, and Prefix is ignored.
	Key string
	// Match, when not nil, tells whether an entry is wanted. An event is
	// delivered when its Current or its Previous matches; the receiver makes
	// of it an addition, change or removal by asking Match again. It is
	// called for each watcher, maybe concurrently, and must be cheap.
	Match func(*Entry) bool
	// Index, when it names one, leaves out entries that have another Value
	// there; the watcher does not even wake for them. It may be ignored, so
	// Match has to ask for the same.
	Index, Value string
	// Narrow: Match costs next to nothing once the entry is decoded, and never
	// blocks. It is asked before the watcher is woken, so that hundreds that
	// want different objects of a collection do not all wake for each.
	Narrow bool
}

// Batch is what Watcher.Next returns.
type Batch struct {
	// Events in the order of their revisions; all of one revision are in one
	// batch. The slice is the caller's until the next call of Next.
	Events []Event
	// Revision up to which the watcher has now seen everything: with no
	// events this is progress (a bookmark's revision).
	Revision int64
}

// ListOptions of Collection.List.
type ListOptions struct {
	// Prefix of keys, "" for all, "ns/" for a namespace.
	Prefix string
	// From is the first key wanted (inclusive), for the next page; "" begins
	// at the prefix's first.
	From string
	// Revision and Exact say how fresh: Revision < 0 is linearizable (at
	// least what is committed when the call is made); 0 is whatever the
	// cache has; > 0 is at least that revision, or with Exact just that one
	// (ErrTooOld when neither the cache nor etcd can tell any more).
	Revision int64
	Exact    bool
	// Limit of entries; zero is no limit. Match is applied before it.
	Limit int
	// Match, when not nil, tells which entries are wanted.
	Match func(*Entry) bool
	// Index, when it names one, leaves out entries that have another Value
	// there without looking at them. It may be ignored, so Match has to ask
	// for the same.
	Index, Value string
}

// Page is what List returns.
type Page struct {
	// Revision at which the list is consistent.
	Revision int64
	// Entries in key order. The slice is the caller's, the entries shared.
	Entries []*Entry
	// Next is the key to continue From, "" when the list is complete.
	Next string
	// Remaining counts the entries not listed, when no Match was given;
	// else -1.
	Remaining int64
}

// CurrentRevision asks etcd for its revision, with a linearizable read.
func (s *Store) CurrentRevision(ctx context.Context) (int64, error) {
	return s.currentRevision(ctx)
}
