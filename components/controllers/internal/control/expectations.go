package control

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
)

// expectationTimeout is how long a controller waits until its informers show its own writes. Writes
// that are not observed by then were missed.
const expectationTimeout = 5 * time.Minute

// Expectations tracks which writes of a controller its informers have not shown yet, by the key of
// the owner. Without them, a controller would repeat writes that its cache does not contain yet. It
// is safe for concurrent use.
type Expectations struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	pending map[string]*expectation // guarded by mu
}

type expectation struct {
	creations int
	deletions sets.Set[string]
	since     time.Time
}

// NewExpectations returns Expectations without pending writes.
func NewExpectations(c clock.PassiveClock) *Expectations {
	return &Expectations{clock: c, pending: map[string]*expectation{}}
}

// Satisfied reports whether all expected writes of key were observed or have timed out.
func (e *Expectations) Satisfied(key string) bool { return e.Left(key) <= 0 }

// Left returns how long the expected writes of key may at most remain pending; zero if all were
// observed or have timed out. The caller checks again after that time, because an object that was
// created and deleted while the informer was disconnected is never observed.
func (e *Expectations) Left(key string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.pending[key]
	if x == nil || x.creations <= 0 && len(x.deletions) == 0 {
		return 0
	}
	return max(0, expectationTimeout-e.clock.Since(x.since))
}

// Expect replaces the expectations of key with n creations and the deletions of the objects with
// these IDs (see ID). It is called before the writes.
func (e *Expectations) Expect(key string, n int, deletions ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending[key] = &expectation{creations: n, deletions: sets.New(deletions...), since: e.clock.Now()}
}

// Created removes one expected creation because it was observed or failed.
func (e *Expectations) Created(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.pending[key]; x != nil && x.creations > 0 {
		x.creations--
	}
}

// Deleted removes the expected deletion of id because it was observed or failed.
func (e *Expectations) Deleted(key, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.pending[key]; x != nil {
		x.deletions.Delete(id)
	}
}

// Forget removes the expectations of key because its owner was deleted.
func (e *Expectations) Forget(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pending, key)
}
