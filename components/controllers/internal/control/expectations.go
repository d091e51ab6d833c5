package control

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
)

// expectationTimeout is how long a controller waits for its own writes to come
// back. One that has not by then never will.
const expectationTimeout = 5 * time.Minute

// Expectations remember what a controller wrote and has not yet seen come back
// through its informers, by the key of the owner. A controller that acted on a
// cache without its own last writes would write them twice.
// It is safe for several goroutines.
type Expectations struct {
	clock clock.PassiveClock

	mu   sync.Mutex
	open map[string]*expectation // guarded by mu
}

type expectation struct {
	creations int
	deletions sets.Set[string]
	since     time.Time
}

// NewExpectations makes an empty one.
func NewExpectations(c clock.PassiveClock) *Expectations {
	return &Expectations{clock: c, open: map[string]*expectation{}}
}

// Satisfied tells whether all that was expected for key came back, or will not
// any more.
func (e *Expectations) Satisfied(key string) bool { return e.Left(key) <= 0 }

// Left is how long at most what is expected for key may still come back; zero if
// all has, or will not any more. Who waits for it looks again then: what was made
// and deleted while an informer was cut off is never seen, and nobody tells.
func (e *Expectations) Left(key string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.open[key]
	if x == nil || x.creations <= 0 && len(x.deletions) == 0 {
		return 0
	}
	return max(0, expectationTimeout-e.clock.Since(x.since))
}

// Expect begins anew for key: n creations, and the deletions of the objects of
// those ids (see ID). It is called before the writes are made.
func (e *Expectations) Expect(key string, n int, deletions ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open[key] = &expectation{creations: n, deletions: sets.New(deletions...), since: e.clock.Now()}
}

// Created takes one creation off: it was seen, or failed.
func (e *Expectations) Created(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.open[key]; x != nil && x.creations > 0 {
		x.creations--
	}
}

// Deleted takes the deletion of id off: it was seen, or failed.
func (e *Expectations) Deleted(key, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.open[key]; x != nil {
		x.deletions.Delete(id)
	}
}

// Forget drops all about key, whose owner is gone.
func (e *Expectations) Forget(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.open, key)
}
