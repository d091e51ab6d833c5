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

	"hyperkube/internal/lifecycle"
)

// Defaults of Config.
const (
	defaultPrefix  = "/registry"
	defaultHistory = 4096
)

// historyBytes bounds, roughly, the stored bytes of a collection's recent events.
// A few events are kept whatever their size.
const historyBytes = 8 << 20

// memoBytes bounds the bytes of all values of Entry.Memo.
const memoBytes = 32 << 20

// Store is one etcd and all collections in it.
type Store struct {
	client *clientv3.Client
	// local tells the current revision where the client has a cheap way.
	local currentRevisioner
	// prefix of all keys, with its slash.
	prefix  string
	history int
	log     *slog.Logger
	// observe is told of requests to etcd; it may be nil.
	observe func(operation, group, resource string, took time.Duration, err error)
	waited  func(group, resource string, took time.Duration)
	// filled is told of caches that have all that there is; it may be nil.
	filled func(group, resource string, took time.Duration)

	position *position
	current  currentReads
	own      ownWrites
	leases   leases
	memos    memoClock
	// nodes of trees that are not used any more.
	nodes *btree.FreeListG[*Entry]

	// forgotten is the revision before which etcd has been compacted.
	forgotten atomic.Int64

	running atomic.Bool
	// done is closed when Run has ended.
	done chan struct{}

	// wentBack has a token when etcd was seen at a revision before the
	// position: it has been restored from a backup.
	wentBack chan struct{}
	// fills has a token when toFill is not empty.
	fills chan struct{}

	mu          sync.Mutex
	collections map[string]*Collection // by path; copied on write for routes
	toFill      []*Collection
	// routes is the same, for readers without a lock.
	routes atomic.Pointer[routes]
}

// currentRevisioner is what an etcd in this process can do better than tell the
// revision with each read: return it, linearizably, for next to nothing. The
// client's KV may implement it.
type currentRevisioner interface {
	CurrentRevision(ctx context.Context) (int64, error)
}

// routes finds the collection of a key.
type routes struct {
	byPath map[string]*Collection
	// depth is the highest number of slashes in a path.
	depth int
}

// New validates cfg. Collections are added before or while Run runs.
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
		observe:     cfg.Observe,
		waited:      cfg.Waited,
		filled:      cfg.Filled,
		position:    newPosition(done),
		own:         ownWrites{byKey: make(map[string]*ownWrite)},
		leases:      leases{client: cfg.Client, full: cfg.Leased, byTTL: make(map[int64]*lease)},
		memos:       memoClock{limit: memoBytes},
		nodes:       btree.NewFreeListG[*Entry](64),
		done:        done,
		wentBack:    make(chan struct{}, 1),
		fills:       make(chan struct{}, 1),
		collections: make(map[string]*Collection),
	}
	s.local, _ = cfg.Client.KV.(currentRevisioner)
	s.routes.Store(&routes{})
	return s, nil
}

// Collection returns the collection of a resource, adding it at first use; the
// same Path must come with the same configuration. Its cache fills when it is
// first read or watched, or at once with Warm. No path may be below another.
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

// Drop forgets a collection and all that is cached of it, for a custom
// resource that is gone. Its watches end with ErrStopped. What is in etcd
// stays.
func (s *Store) Drop(c *Collection) {
	s.mu.Lock()
	if s.collections[c.cfg.Path] != c {
		s.mu.Unlock()
		return
	}
	delete(s.collections, c.cfg.Path)
	// Before its keys are of another, or nobody's: what is read of them then is
	// not taken for all that there is.
	close(c.dropped)
	s.reroute()
	s.mu.Unlock()

	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	c.watchers.fail(ErrStopped)
}

func (s *Store) reroute() {
	r := &routes{byPath: make(map[string]*Collection, len(s.collections))}
	for path, c := range s.collections {
		r.byPath[path] = c
		r.depth = max(r.depth, strings.Count(path, "/"))
	}
	s.routes.Store(r)
}

// route finds the collection with the longest path that a full key is below;
// nil if there is none.
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

// Healthy returns nil when etcd answers a linearizable read.
func (s *Store) Healthy(ctx context.Context) error {
	if _, err := s.readCurrent(ctx); err != nil {
		return fmt.Errorf("checking etcd: %w", err)
	}
	return nil
}

func (s *Store) currentRevision(ctx context.Context) (int64, error) {
	return s.current.get(ctx, s.readShared)
}

// currentTimeout bounds a read of the current revision.
const currentTimeout = 10 * time.Second

// readShared is for many, none of which ends it.
func (s *Store) readShared() (int64, error) {
	if s.local != nil {
		// An etcd in this process answers at once, or when its disk does: whatever
		// it is told of time.
		return s.learnCurrent(context.Background(), s.local.CurrentRevision)
	}
	ctx, cancel := context.WithTimeout(context.Background(), currentTimeout)
	defer cancel()
	return s.readCurrent(ctx)
}

// readCurrent reads a key that does not exist, for the revision that comes
// with the answer.
func (s *Store) readCurrent(ctx context.Context) (int64, error) {
	return s.learnCurrent(ctx, func(ctx context.Context) (int64, error) {
		resp, err := s.client.Get(ctx, s.prefix, clientv3.WithKeysOnly())
		if err != nil {
			return 0, err
		}
		return resp.Header.Revision, nil
	})
}

// behind is for how long etcd may tell an earlier revision than its watch did:
// a member tells its watchers of a write a moment before its own reads show it,
// and of that moment's end it tells nobody.
const behind = 100 * time.Millisecond

// learnCurrent asks etcd for its revision and notes it. One that is earlier
// than what the caches had reached before, and stays so, means that etcd was
// restored from a backup under the store.
func (s *Store) learnCurrent(ctx context.Context, ask func(context.Context) (int64, error)) (int64, error) {
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
		if wait > behind {
			signal(s.wentBack)
			return 0, fmt.Errorf("%w: it went back from revision %d to %d", ErrUnavailable, position, revision)
		}
		if !lifecycle.Pause(ctx, wait) {
			return 0, etcdError(ctx.Err())
		}
		wait *= 2
	}
}

// getRange reads keys in [from, end), at a revision or with zero at the
// current one.
func (s *Store) getRange(ctx context.Context, c *Collection, from, end string, revision, limit int64) (*clientv3.GetResponse, error) {
	began := s.now()
	resp, err := s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(limit))
	s.observed("list", c, began, err)
	return resp, err
}

// now is when a request to etcd begins; zero when nobody observes them.
func (s *Store) now() time.Time {
	if s.observe == nil {
		return time.Time{}
	}
	return time.Now()
}

// observed tells of a request to etcd that has ended.
func (s *Store) observed(operation string, c *Collection, began time.Time, err error) {
	if s.observe != nil {
		s.observe(operation, c.cfg.Resource.Group, c.cfg.Resource.Resource, time.Since(began), err)
	}
}

// askedTimeout is how long a revision that a client named is waited for, as
// upstream does.
const askedTimeout = 3 * time.Second

// waitAsked waits for a revision that may never come.
func (s *Store) waitAsked(ctx context.Context, revision int64) error {
	if s.position.get() >= revision {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, askedTimeout)
	defer cancel()
	err := s.position.wait(limited, revision)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return fmt.Errorf("%w: %d, current: %d", ErrTooNew, revision, s.position.get())
	}
	return err
}
