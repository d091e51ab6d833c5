package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"
	clientv3 "go.etcd.io/etcd/client/v3"

	"hyperkube/internal/base/lifecycle"
)

// defaultPrefix and defaultHistory are the defaults of Config: the prefix of all keys in etcd, and the number of
// recent events per collection.
const (
	defaultPrefix  = "/registry"
	defaultHistory = 4096
)

// historyBytes is the approximate limit of the stored bytes of a collection's recent events. A few
// events are kept regardless of their size.
const historyBytes = 8 << 20

// memoBytes is the memory limit, in bytes, of all values of Entry.Memo and all decoded objects that
// Entry.Object keeps.
const memoBytes = 32 << 20

// Store stores the objects of all resources in one etcd cluster and caches them in memory. It
// contains one Collection per resource.
type Store struct {
	client *clientv3.Client
	// local returns the current revision, if the client has a cheap way to get it; otherwise nil.
	local currentRevisioner
	// prefix is the prefix of all keys, with a trailing slash.
	prefix  string
	history int
	log     *slog.Logger
	observers

	position *position
	current  currentReads
	pending  pendingWrites
	leases   leases
	memos    memoClock
	// nodes contains unused tree nodes for reuse.
	nodes *btree.FreeListG[*Entry]

	// compacted is the revision of the last compaction of etcd.
	compacted atomic.Int64

	lifetime

	// rolledBack receives a token when etcd was seen at a revision before the position, which means
	// that it was restored from a backup.
	rolledBack chan struct{}
	// fills receives a token when toFill is not empty.
	fills chan struct{}

	mu          sync.Mutex
	collections map[string]*Collection // by path; routes is updated with each change
	toFill      []*Collection
	// routes is a copy of collections for readers without a lock.
	routes atomic.Pointer[routes]
}

// observers are called after requests to etcd, for metrics. Each of them may be nil.
type observers struct {
	onRequest func(operation, group, resource string, took time.Duration, err error)
	// onWait is called after a read has waited for the cache.
	onWait func(group, resource string, took time.Duration)
	// onFill is called when a cache was filled.
	onFill func(group, resource string, took time.Duration)
}

// lifetime is the state of Run. running is set when Run is called.
type lifetime struct {
	running atomic.Bool
	// done is closed when Run has returned.
	done chan struct{}
}

// currentRevisioner is implemented by the KV of an embedded etcd's client. It returns the current
// revision linearizably, at almost no cost, without reading a key.
type currentRevisioner interface {
	CurrentRevision(ctx context.Context) (int64, error)
}

// routes finds the collection of an etcd key: each collection contains the keys below its path.
type routes struct {
	byPath map[string]*Collection
	// depth is the maximum number of slashes in a path.
	depth int
}

// New validates cfg and creates a store: a client is required, and History must not be negative. Its caches are not
// filled until the caller runs Run. Collections can be added before or while Run runs.
func New(cfg Config) (*Store, error) {
	if cfg.Client == nil {
		return nil, errors.New("store: no etcd client")
	}
	if cfg.History < 0 {
		return nil, errors.New("store: negative bound")
	}
	prefix := strings.Trim(cfg.Prefix, "/")
	if prefix == "" {
		prefix = strings.Trim(defaultPrefix, "/")
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	done := make(chan struct{})
	s := &Store{
		client:      cfg.Client,
		prefix:      "/" + prefix + "/",
		history:     cmp.Or(cfg.History, defaultHistory),
		log:         log,
		observers:   observers{onRequest: cfg.OnRequest, onWait: cfg.OnWait, onFill: cfg.OnFill},
		position:    newPosition(done),
		pending:     pendingWrites{byKey: make(map[string]*pendingWrite)},
		leases:      leases{client: cfg.Client, onFull: cfg.OnLeaseFull, byTTL: make(map[int64]*lease)},
		memos:       memoClock{limit: memoBytes},
		nodes:       btree.NewFreeListG[*Entry](64),
		lifetime:    lifetime{done: done},
		rolledBack:  make(chan struct{}, 1),
		fills:       make(chan struct{}, 1),
		collections: make(map[string]*Collection),
	}
	s.local, _ = cfg.Client.KV.(currentRevisioner)
	s.routes.Store(&routes{})
	return s, nil
}

// Collection returns the collection of a resource and adds it on first use. Calls with the same Path must have the
// same configuration; the first one is used. The cache is filled on the first read or watch, or when Warm is called.
// A path must not be below another one.
func (s *Store) Collection(cfg CollectionConfig) *Collection {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg.Path = strings.Trim(cfg.Path, "/")
	if c := s.collections[cfg.Path]; c != nil {
		return c
	}
	c := newCollection(s, cfg)
	s.collections[cfg.Path] = c
	s.reroute()
	return c
}

// Drop removes a collection and its cache, for a custom resource that was deleted. Its watches and later reads fail
// with ErrStopped. The data in etcd is not changed. It does nothing if the collection was dropped before.
func (s *Store) Drop(c *Collection) {
	s.mu.Lock()
	if s.collections[c.cfg.Path] != c {
		s.mu.Unlock()
		return
	}
	delete(s.collections, c.cfg.Path)
	// Close dropped before the keys are routed to another or no collection, so that an incomplete
	// read of them is not considered complete.
	close(c.dropped)
	s.reroute()
	s.mu.Unlock()

	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	c.watchers.fail(ErrStopped)
}

// reroute creates the table by which route finds the collection of an etcd key again, after a collection was added
// or dropped. Readers of the previous table are not affected. The caller holds mu.
func (s *Store) reroute() {
	r := &routes{byPath: make(map[string]*Collection, len(s.collections))}
	for path, c := range s.collections {
		r.byPath[path] = c
		r.depth = max(r.depth, strings.Count(path, "/"))
	}
	s.routes.Store(r)
}

// route returns the collection with the longest path that contains the full key, or nil if there is none, for example
// because the key has another prefix.
func (s *Store) route(fullKey []byte) *Collection {
	if len(fullKey) <= len(s.prefix) || string(fullKey[:len(s.prefix)]) != s.prefix {
		return nil
	}
	rest := fullKey[len(s.prefix):]
	r := s.routes.Load()
	var found *Collection
	for i, slashes := 0, 0; i < len(rest)-1 && slashes <= r.depth; i++ {
		if rest[i] != '/' {
			continue
		}
		slashes++
		if c := r.byPath[string(rest[:i])]; c != nil {
			found = c
		}
	}
	return found
}

// Healthy returns nil if etcd can serve a linearizable read, which needs a quorum, and otherwise an error, also if
// etcd was restored from a backup and the caches are not read again yet. The health endpoints of the API server call
// it.
func (s *Store) Healthy(ctx context.Context) error {
	if _, err := s.readCurrent(ctx); err != nil {
		return fmt.Errorf("checking etcd: %w", err)
	}
	return nil
}

// currentRevision returns etcd's current revision, linearizably: it includes all writes that completed before the
// call. Concurrent callers share a request.
func (s *Store) currentRevision(ctx context.Context) (int64, error) {
	return s.current.get(ctx, s.readShared)
}

// currentTimeout limits a shared read of the current revision from an etcd over the network.
const currentTimeout = 10 * time.Second

// readShared reads the current revision for concurrent callers. It does not depend on the context
// of any of them.
func (s *Store) readShared() (int64, error) {
	if s.local != nil {
		// An embedded etcd responds immediately, or as soon as its disk does. A timeout has no
		// effect.
		return s.recordCurrent(context.Background(), s.local.CurrentRevision)
	}
	ctx, cancel := context.WithTimeout(context.Background(), currentTimeout)
	defer cancel()
	return s.readCurrent(ctx)
}

// readCurrent returns etcd's current revision. It reads a key that does not exist, because the response contains the
// revision.
func (s *Store) readCurrent(ctx context.Context) (int64, error) {
	return s.recordCurrent(ctx, func(ctx context.Context) (int64, error) {
		resp, err := s.client.Get(ctx, s.prefix, clientv3.WithKeysOnly())
		if err != nil {
			return 0, err
		}
		return resp.Header.Revision, nil
	})
}

// maxRevisionLag is the maximum time during which etcd may report an earlier revision than its watch did: a
// member notifies its watchers of a write shortly before its reads include it, and there is no
// event for the latter.
const maxRevisionLag = 100 * time.Millisecond

// recordCurrent returns the current revision, which it gets from etcd with ask, and records it in position. If the
// result is lower than the revision that the caches have reached, it asks again for about maxRevisionLag. If it stays
// lower, etcd was restored from a backup while the store was running: recordCurrent then makes the store read all
// objects again and returns ErrUnavailable.
func (s *Store) recordCurrent(ctx context.Context, ask func(context.Context) (int64, error)) (int64, error) {
	wait := 50 * time.Microsecond
	for {
		position := s.position.get()
		revision, err := ask(ctx)
		if err != nil {
			return 0, etcdError(err)
		}
		if revision >= position {
			s.position.learn(revision)
			return revision, nil
		}
		if wait > maxRevisionLag {
			signal(s.rolledBack)
			return 0, fmt.Errorf("%w: revision decreased from %d to %d", ErrUnavailable, position, revision)
		}
		if !lifecycle.Pause(ctx, wait) {
			return 0, etcdError(ctx.Err())
		}
		wait *= 2
	}
}

// getRange reads the keys in [from, end) at a revision, or at the current one if it is zero. limit is the maximum
// number of keys, or zero for all.
func (s *Store) getRange(ctx context.Context, c *Collection, from, end string, revision, limit int64) (*clientv3.GetResponse, error) {
	began := s.now()
	resp, err := s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(limit))
	s.observed("list", c, began, err)
	return resp, err
}

// now returns the start time of a request to etcd for observed, or zero if requests are not
// observed.
func (s *Store) now() time.Time {
	if s.onRequest == nil {
		return time.Time{}
	}
	return time.Now()
}

// observed calls Config.OnRequest for a completed request to etcd that started at began.
func (s *Store) observed(operation string, c *Collection, began time.Time, err error) {
	if s.onRequest != nil {
		s.onRequest(operation, c.cfg.Resource.Group, c.cfg.Resource.Resource, time.Since(began), err)
	}
}

// requestedRevisionTimeout is the maximum time to wait for a revision that a client requested, as in upstream.
const requestedRevisionTimeout = 3 * time.Second

// waitForRequested waits until the caches include a revision that a client requested. It gives up with ErrTooNew
// after requestedRevisionTimeout, because etcd may never reach the revision. It returns ErrStopped if the store
// stops, and the error of ctx if that is done first.
func (s *Store) waitForRequested(ctx context.Context, revision int64) error {
	if s.position.get() >= revision {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, requestedRevisionTimeout)
	defer cancel()
	err := s.position.wait(limited, revision)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return fmt.Errorf("%w: %d, current: %d", ErrTooNew, revision, s.position.get())
	}
	return err
}
