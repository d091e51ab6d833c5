// Package store stores API objects in etcd and caches them in memory. It provides transactions,
// resource versions, consistent lists and watches. It is independent of HTTP and of object kinds:
// each resource is a Collection with a Codec.
//
// Design (see docs/development/store.md): One etcd watch on the whole prefix updates all collections. An Entry
// consists of a key, a revision, the stored bytes and, when needed, the decoded object. It is
// immutable and shared. Events of one revision are published together. Reads that need a revision
// which the cache has not reached request a progress notification from etcd and wait for it. The
// store never waits for a slow watcher: its watch fails with ErrTooOld.
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

// ErrNotFound and the other errors report that a key or a revision is not in the state that the caller expects.
// They are wrapped with the key.
var (
	// ErrNotFound means that the key does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists is returned by Create if the key exists.
	ErrExists = errors.New("already exists")
	// ErrConflict means that the revision of the key in etcd is not the expected one.
	ErrConflict = errors.New("revision conflict")
	// ErrTooOld means that the revision is compacted or older than the recorded history.
	ErrTooOld = errors.New("too old resource version")
	// ErrTooNew means that the revision was not reached before the deadline.
	ErrTooNew = errors.New("too large resource version")
)

// Codec encodes and decodes the objects of one collection.
type Codec interface {
	// Encode returns the bytes to store, e.g. protobuf with the prefix "k8s\0". The resourceVersion of obj must be
	// empty. It is called by Commit, before anything is written.
	Encode(obj runtime.Object) ([]byte, error)
	// Decode reverses Encode. It returns a new object with default values and with resourceVersion set to revision,
	// or an error if data is malformed or of another kind.
	Decode(data []byte, revision int64) (runtime.Object, error)
}

// Trimmer is an optional interface of a Codec. Entry.Trimmed uses it for in-process informers,
// which keep many objects in memory.
type Trimmer interface {
	// DecodeTrimmed is like Decode, but leaves out parts of the object, such as managedFields. The
	// caller must not write the result back as the complete object.
	DecodeTrimmed(data []byte, revision int64) (runtime.Object, error)
}

// Config is the configuration of a Store: its etcd client, the key prefix and the limits.
type Config struct {
	// Client is the etcd client, either over the network or in process.
	Client *clientv3.Client
	// Prefix is the prefix of all keys. Default: "/registry".
	Prefix string
	// History is the maximum number of recent events per collection that are kept for watches from
	// older revisions. Zero means 4096.
	History int
	// OnRequest is called after each etcd request that lists or writes objects of a resource. operation is list,
	// create, update or delete. It may be nil, must be safe for concurrent use and must be fast.
	OnRequest func(operation, group, resource string, took time.Duration, err error)
	// OnWait is called with the time that a consistent read has waited for the cache to include all
	// previous writes. It may be nil, must be safe for concurrent use and must be fast.
	OnWait func(group, resource string, took time.Duration)
	// OnFill is called with the time it took to fill the cache of a resource. OnLeaseFull is called
	// with the number of objects of a lease that is not used for further objects. Both may be nil,
	// must be safe for concurrent use and must be fast.
	OnFill      func(group, resource string, took time.Duration)
	OnLeaseFull func(objects int)
	// Log receives warnings of background work. If it is nil, nothing is logged.
	Log *slog.Logger
}

// CollectionConfig describes the objects of one resource: their keys in etcd, their encoding and
// their indexes.
type CollectionConfig struct {
	// Resource is the group and resource, for errors and metrics.
	Resource schema.GroupResource
	// Path is the path below the store's prefix, without leading and trailing slash.
	Path string
	// Codec encodes and decodes the objects.
	Codec Codec
	// Transformer encrypts the stored values. If it is nil, they are not encrypted.
	Transformer value.Transformer
	// Indexes are used by lists and watches to find entries. Encrypted collections are not indexed.
	Indexes []Index
}

// Index is an attribute that is often used for selection, such as the node of a pod.
type Index struct {
	// Name is what WatchOptions.Index and ListOptions.Index refer to.
	Name string
	// Of returns the value of an entry, which must not depend on anything else. It is called for
	// each change while the collection is locked, so it must be fast.
	Of func(*Entry) string
}

// Op is one create, update or delete of an object in a transaction. Collection.Create, Update and Delete return one;
// Store.Commit executes it. The zero Op is rejected.
type Op struct {
	collection *Collection
	key        string
	object     runtime.Object // nil: delete
	expect     int64          // 0: must not exist; >0: expected mod revision
	ttl        int64          // in seconds; 0: none
	from       *Entry         // for updates: the entry with the revision expect
}

// Store returns the store whose collection created the operation. Commit of another store rejects
// it.
func (o Op) Store() *Store { return o.collection.store }

// Key returns the key of the operation, relative to its collection.
func (o Op) Key() string { return o.key }

// ConflictError is the error of Store.Commit if the key of an operation is not in the expected
// state, because another client has written it. It identifies the operation, contains the current
// entry, and wraps ErrConflict (another revision), ErrExists (a create) or ErrNotFound (deleted).
type ConflictError struct {
	Resource schema.GroupResource
	Key      string
	// Current is the current entry of the key in etcd, or nil if there is none.
	Current *Entry
	Err     error
}

// Error returns a text with the resource, the key and the reason.
func (e *ConflictError) Error() string { return fmt.Sprintf("%s %q: %v", e.Resource, e.Key, e.Err) }

// Unwrap returns ErrConflict, ErrExists or ErrNotFound, for errors.Is.
func (e *ConflictError) Unwrap() error { return e.Err }

// Event is a change of one key. Current is nil if the key was deleted, Previous is nil if it was
// created. For a deletion, Revision is the revision of the deletion and Previous has that of the
// last write.
type Event struct {
	Revision          int64
	Current, Previous *Entry
}

// WatchOptions select the objects and the revision from which Collection.Watch reports changes.
type WatchOptions struct {
	// Since is the revision after which the watch starts. All events after it are delivered without
	// gaps, or the watch fails. Zero starts at the current revision.
	Since int64
	// Prefix is the prefix of the watched keys: "" for all, "ns/" for a namespace.
	Prefix string
	// Key selects a single key. If it is set, Prefix is ignored.
	Key string
	// Match selects entries. An event is delivered if its Current or its Previous matches; the
	// receiver calls Match again to distinguish additions, changes and removals. It is called for
	// each watcher, possibly concurrently, and must be fast. It may be nil.
	Match func(*Entry) bool
	// Index, if it names an index, restricts the watch to entries with Value in that index. The
	// watcher is not woken for other entries. The store may ignore it, so Match must select the
	// same entries.
	Index, Value string
	// Narrow specifies that Match is very fast once the entry is decoded and never blocks. It is
	// then called before the watcher is woken, so that a change does not wake hundreds of watchers
	// of other objects.
	Narrow bool
}

// Batch contains the events that Watcher.Next returns together.
type Batch struct {
	// Events are sorted by revision. All events of a revision are in the same batch. The slice is
	// valid until the next call of Next.
	Events []Event
	// Revision is the revision up to which the watcher has received all events. Without events, the
	// batch is a progress notification (a bookmark).
	Revision int64
}

// ListOptions select the objects of Collection.List, and how recent its result is.
type ListOptions struct {
	// Prefix is the prefix of the listed keys: "" for all, "ns/" for a namespace.
	Prefix string
	// From is the first key of the page (inclusive); "" starts at the first key with the prefix.
	From string
	// Revision and Exact specify the consistency. Revision < 0 is linearizable: the list includes
	// all writes committed before the call. 0 is the current state of the cache. > 0 is at least
	// that revision or, with Exact, exactly that revision (ErrTooOld if it is available neither in
	// the cache nor in etcd).
	Revision int64
	Exact    bool
	// Limit is the maximum number of matching entries. Zero means no limit.
	Limit int
	// Match selects entries. It may be nil.
	Match func(*Entry) bool
	// Index, if it names an index, restricts the list to entries with Value in that index, without
	// checking others. The store may ignore it, so Match must select the same entries.
	Index, Value string
}

// Page is the result of Collection.List: the selected entries, and the position at which the next
// List continues.
type Page struct {
	// Revision is the revision at which the list is consistent.
	Revision int64
	// Entries are sorted by key. The caller owns the slice; the entries are shared.
	Entries []*Entry
	// Next is the From key of the next page, or "" if the list is complete.
	Next string
	// Remaining is the number of entries after this page, 0 if there is none, or -1 if Match was set.
	Remaining int64
}

// CurrentRevision asks etcd for its current revision. The result is linearizable: it includes all
// writes that completed before the call. Concurrent calls share one request. It returns
// ErrUnavailable if etcd does not respond.
func (s *Store) CurrentRevision(ctx context.Context) (int64, error) {
	return s.currentRevision(ctx)
}
