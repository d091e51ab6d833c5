// Package lifecycle defines the contract of all long-running components of hyperkube: the
// constructor validates the configuration, and Run blocks until its context is done or the
// component fails. When Run returns, everything that it started has stopped. Readiness is signaled
// by a channel, never by waiting for a fixed time.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Component is a long-running component.
type Component interface {
	// Run blocks until ctx is done (then it returns nil) or the component fails. When it returns,
	// everything that it started has stopped. Call it once.
	Run(ctx context.Context) error
}

// Readier is a Component that reports its readiness.
type Readier interface {
	Component
	// Ready returns a channel that is closed when the component is ready. If Run fails before, the
	// channel is never closed.
	Ready() <-chan struct{}
}

// StopTimeouter is a Component that may need more time to stop than others, for example because it
// contains a Group. The StopTimeout of a group does not shorten it.
type StopTimeouter interface {
	Component
	// StopTimeout is the time that the component may need to stop.
	StopTimeout() time.Duration
}

// Func is a function that implements Component.
type Func func(ctx context.Context) error

// Run calls f with ctx and returns its error.
func (f Func) Run(ctx context.Context) error { return f(ctx) }

// Group runs components that are started in the order of their dependencies. Stop stops them one by
// one in reverse order, so that no component loses its dependencies while it runs. A Group must be
// used by one goroutine only. The zero value is ready to use.
type Group struct {
	// Log receives a message for each stopped component, at info level if it took long. If it is
	// nil, nothing is logged.
	Log *slog.Logger
	// StopTimeout is the time that each component may need to stop, unless it implements
	// StopTimeouter. Zero means thirty seconds.
	StopTimeout time.Duration

	members []*member
	failed  chan error
}

// member is a component that a Group has started. err is the result of its Run, valid after done is closed.
type member struct {
	name           string
	cancel         context.CancelFunc
	done           chan struct{}
	err            error
	minStopTimeout time.Duration // minimum stop timeout
}

// Start runs c in a new goroutine until Stop is called or ctx is done. name identifies c in errors
// and logs. If c exits before, with or without an error, the channel of Failed receives an error.
func (g *Group) Start(ctx context.Context, name string, c Component) {
	if g.failed == nil {
		g.failed = make(chan error, 1)
	}
	ctx, cancel := context.WithCancel(ctx)
	m := &member{name: name, cancel: cancel, done: make(chan struct{})}
	if p, ok := c.(StopTimeouter); ok {
		m.minStopTimeout = p.StopTimeout()
	}
	g.members = append(g.members, m)
	go func() {
		err := c.Run(ctx)
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		} else if ctx.Err() == nil {
			err = fmt.Errorf("%s: exited unexpectedly", name)
		}
		m.err = err
		close(m.done)
		if err != nil && ctx.Err() == nil {
			select {
			case g.failed <- err:
			default:
			}
		}
	}()
}

// Failed returns a channel that receives an error when the first component exits although it was
// not stopped. It is nil, so that receiving blocks, before the first Start.
func (g *Group) Failed() <-chan error { return g.failed }

// WaitReady blocks until ready is closed, a member of the group fails or ctx is done. In the last
// two cases it returns an error. name identifies the awaited component in that error.
func (g *Group) WaitReady(ctx context.Context, name string, ready <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case err := <-g.failed:
		// Put the error back for other readers of Failed.
		select {
		case g.failed <- err:
		default:
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("waiting for %s: %w", name, context.Cause(ctx))
	}
}

// WaitFor runs f, which waits for the effect of members of the group, and returns its error. If a member fails before,
// WaitFor cancels the context of f, waits for f and returns the member's error, which Failed then no longer delivers.
// what describes in errors what f waits for.
func (g *Group) WaitFor(ctx context.Context, what string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		return nil
	case err := <-g.failed:
		cancel()
		_ = <-done // a consequence of the member's error
		return err
	}
}

const (
	// defaultStopTimeout is long enough for an overloaded machine. Stopping usually takes
	// milliseconds.
	defaultStopTimeout = 30 * time.Second
	// slowStop is the stop duration from which on it is logged at info level.
	slowStop = 3 * time.Second
)

// Stop stops all members one by one, the last started first, and returns their errors joined, except context.Canceled.
// A member that does not stop within its timeout is an error, and Stop continues with the next one. Afterwards the
// group is empty.
func (g *Group) Stop() error {
	usual := g.StopTimeout
	if usual == 0 {
		usual = defaultStopTimeout
	}
	var errs []error
	for _, m := range slices.Backward(g.members) {
		m.cancel()
		timeout, began := max(usual, m.minStopTimeout), time.Now()
		timer := time.NewTimer(timeout)
		select {
		case <-m.done:
			if m.err != nil && !errors.Is(m.err, context.Canceled) {
				errs = append(errs, m.err)
			}
			if g.Log != nil {
				level := slog.LevelDebug
				if time.Since(began) > slowStop {
					level = slog.LevelInfo
				}
				g.Log.Log(context.Background(), level, "component of this process stopped", "component", m.name, "after", time.Since(began))
			}
		case <-timer.C:
			errs = append(errs, fmt.Errorf("%s: did not stop within %s", m.name, timeout))
		}
		timer.Stop()
	}
	g.members = nil
	return errors.Join(errs...)
}
