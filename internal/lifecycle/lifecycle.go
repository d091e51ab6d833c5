// Package lifecycle holds the one contract that everything that runs in
// hyperkube keeps: a constructor validates, Run blocks until its context ends
// or the component fails, and returns only when all that it started has
// stopped. Readiness is a channel, never a sleep.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Component is anything that runs for a while.
type Component interface {
	// Run blocks until ctx ends (then it returns nil) or the component fails.
	// Everything that Run started has stopped when it returns. It is called
	// once.
	Run(ctx context.Context) error
}

// Readier is a Component that others wait for.
type Readier interface {
	Component
	// Ready is closed once the component does its work for others. It is
	// never closed when Run fails first.
	Ready() <-chan struct{}
}

// Patient is a Component that may need longer to end than others do, such as one
// that has a group of its own. A group's StopTimeout does not shorten that.
type Patient interface {
	Component
	// StopTimeout is how long it may take.
	StopTimeout() time.Duration
}

// Func makes a Component of a function.
type Func func(ctx context.Context) error

// Run calls f.
func (f Func) Run(ctx context.Context) error { return f(ctx) }

// Group runs components that are started in the order of their dependence: Stop
// ends them one by one, the last first, so that nobody loses what it stands on
// while it still works. It is not for use by several goroutines.
type Group struct {
	// Log receives a line for each component that ends, and who took long. Nil: no
	// lines.
	Log *slog.Logger
	// StopTimeout bounds how long each component may take to end, but for those
	// that are Patient; zero means thirty seconds.
	StopTimeout time.Duration

	members []*member
	failed  chan error
}

type member struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	least  time.Duration // of the time to end
}

// Start runs c until Stop. The values of ctx reach c, its end too.
func (g *Group) Start(ctx context.Context, name string, c Component) {
	if g.failed == nil {
		g.failed = make(chan error, 1)
	}
	ctx, cancel := context.WithCancel(ctx)
	m := &member{name: name, cancel: cancel, done: make(chan struct{})}
	if p, ok := c.(Patient); ok {
		m.least = p.StopTimeout()
	}
	g.members = append(g.members, m)
	go func() {
		err := c.Run(ctx)
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		} else if ctx.Err() == nil {
			err = fmt.Errorf("%s: ended though nobody asked it to", name)
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

// Failed yields the error of the first component that ended by itself. It is
// nil until the first Start.
func (g *Group) Failed() <-chan error { return g.failed }

// WaitReady blocks until r is ready, a member of the group fails or ctx ends.
func (g *Group) WaitReady(ctx context.Context, name string, ready <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case err := <-g.failed:
		// Others may still want to see it.
		select {
		case g.failed <- err:
		default:
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("waiting for %s: %w", name, context.Cause(ctx))
	}
}

// While runs f, which waits for something that the members bring about, and
// ends its context when one of them fails.
func (g *Group) While(ctx context.Context, what string, f func(ctx context.Context) error) error {
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
		_ = <-done // its error only follows from the member's
		return err
	}
}

const (
	// usualStopTimeout is what a machine on which everybody is late may need for
	// what takes milliseconds otherwise.
	usualStopTimeout = 30 * time.Second
	// longStop is worth a word to who waits.
	longStop = 3 * time.Second
)

// Stop ends all members, the last started first, and returns their errors
// joined, that of a member which did not end in time among them.
func (g *Group) Stop() error {
	usual := g.StopTimeout
	if usual == 0 {
		usual = usualStopTimeout
	}
	var errs []error
	for _, m := range slices.Backward(g.members) {
		m.cancel()
		timeout, began := max(usual, m.least), time.Now()
		timer := time.NewTimer(timeout)
		select {
		case <-m.done:
			if m.err != nil && !errors.Is(m.err, context.Canceled) {
				errs = append(errs, m.err)
			}
			if g.Log != nil {
				level := slog.LevelDebug
				if time.Since(began) > longStop {
					level = slog.LevelInfo
				}
				g.Log.Log(context.Background(), level, "component stopped", "component", m.name, "after", time.Since(began))
			}
		case <-timer.C:
			errs = append(errs, fmt.Errorf("%s: did not stop within %s", m.name, timeout))
		}
		timer.Stop()
	}
	g.members = nil
	return errors.Join(errs...)
}
