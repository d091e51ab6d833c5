// Package informed holds back who decides by informers until these are filled,
// so that a server can start at once and the first requests wait a moment
// instead of being refused.
package informed

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
)

// patience is how long one request waits.
const patience = 10 * time.Second

// Gate opens when informers are filled. Its methods are safe for several
// goroutines.
type Gate struct {
	open   atomic.Bool
	checks []cache.DoneChecker
}

// NewGate makes a gate that opens when all checks are done.
func NewGate(checks ...cache.DoneChecker) *Gate { return &Gate{checks: checks} }

// Wait returns nil once the gate is open, and an error that names what is
// missing when ctx ends or ten seconds pass before.
func (g *Gate) Wait(ctx context.Context) error {
	if g.open.Load() {
		return nil
	}
	timer := time.NewTimer(patience)
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

// Ready tells whether the gate is open, for a health check.
func (g *Gate) Ready() bool {
	for _, c := range g.checks {
		if !cache.IsDone(c) {
			return false
		}
	}
	return true
}
