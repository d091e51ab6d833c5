package control

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
)

// expectationTimeout is how long a controller waits for its informers to show its own writes. After that, it assumes
// that the informers have missed them.
const expectationTimeout = 5 * time.Minute

// Expectations tracks the pods that a controller has created or deleted but its informers have not shown yet. A
// controller does not create or delete more pods of an owner until then, because it would repeat writes that its cache
// does not contain. The key identifies the owner, such as a ReplicaSet. It is safe for concurrent use.
type Expectations struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	pending map[string]*expectation // guarded by mu
}

// expectation is the pending writes of one owner: a number of creations, and the IDs of deleted pods.
type expectation struct {
	creations int
	deletions sets.Set[string]
	since     time.Time
}

// NewExpectations returns Expectations without pending writes.
func NewExpectations(c clock.PassiveClock) *Expectations {
	return &Expectations{clock: c, pending: map[string]*expectation{}}
}

// Satisfied reports whether no write for the owner key is pending, because all were observed or have timed out.
func (e *Expectations) Satisfied(key string) bool { return e.Left(key) <= 0 }

// Left returns how long the pending writes for the owner key may remain unobserved, or zero if none is pending. The
// caller should sync the owner again after that time, because an object that was created and deleted while the informer
// was disconnected is never observed.
func (e *Expectations) Left(key string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.pending[key]
	if x == nil || x.creations <= 0 && len(x.deletions) == 0 {
		return 0
	}
	return max(0, expectationTimeout-e.clock.Since(x.since))
}

// Expect replaces the pending writes for the owner key by n creations and the deletions of the pods with these IDs (see
// ID). Call it before the writes, so that the informer's events cannot come first.
func (e *Expectations) Expect(key string, n int, deletions ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending[key] = &expectation{creations: n, deletions: sets.New(deletions...), since: e.clock.Now()}
}

// Created removes one pending creation for the owner key, because it was observed or has failed.
func (e *Expectations) Created(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.pending[key]; x != nil && x.creations > 0 {
		x.creations--
	}
}

// Deleted removes the pending deletion of the pod for the owner key, because it was observed or has failed. id is the
// result of ID for the pod.
func (e *Expectations) Deleted(key, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.pending[key]; x != nil {
		x.deletions.Delete(id)
	}
}

// Forget removes all pending writes for the owner key, because the owner was deleted.
func (e *Expectations) Forget(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pending, key)
}
