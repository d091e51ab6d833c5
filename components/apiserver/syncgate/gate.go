// Package syncgate delays requests whose decisions depend on informers until these have synced.
// This way a server can start immediately, and the first requests wait briefly instead of being
// rejected.
package syncgate

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
)

// waitTimeout is the maximum time that a request waits at a Gate.
const waitTimeout = 10 * time.Second

// Gate blocks requests until a set of informers has synced. It is safe for concurrent use.
type Gate struct {
	open   atomic.Bool
	checks []cache.DoneChecker
}

// NewGate returns a gate that opens when the informers of all checks have synced.
func NewGate(checks ...cache.DoneChecker) *Gate { return &Gate{checks: checks} }

// Wait returns nil once the gate is open. If ctx is done or waitTimeout passes before that, it
// returns an error that names the informer that has not synced.
func (g *Gate) Wait(ctx context.Context) error {
	if g.open.Load() {
		return nil
	}
	timer := time.NewTimer(waitTimeout)
	defer timer.Stop()
	for _, c := range g.checks {
		select {
		case <-c.Done():
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", c.Name(), ctx.Err())
		case <-timer.C:
			return fmt.Errorf("%s is not filled yet", c.Name())
		}
	}
	g.open.Store(true)
	return nil
}

// Ready reports whether all informers have synced, without waiting, for a health check.
func (g *Gate) Ready() bool {
	for _, c := range g.checks {
		if !cache.IsDone(c) {
			return false
		}
	}
	return true
}
