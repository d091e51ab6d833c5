package lifecycle

import (
	"context"
	"strings"
	"testing"
	"time"
)

// slow is a component that stops only after end is closed.
type slow struct {
	end     chan struct{}
	timeout time.Duration
}

func (s slow) Run(context.Context) error {
	<-s.end
	return nil
}

// slowStopTimeouter is a slow component with its own stop timeout.
type slowStopTimeouter struct{ slow }

func (p slowStopTimeouter) StopTimeout() time.Duration { return p.timeout }

// TestStopTimeout checks that a group stops waiting for a component after its timeout, unless the
// component implements StopTimeouter.
func TestStopTimeout(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	g := Group{StopTimeout: time.Millisecond}
	g.Start(t.Context(), "slow", slow{end: end})
	if err := g.Stop(); err == nil || !strings.Contains(err.Error(), "slow: did not stop within 1ms") {
		t.Errorf("a component that does not stop: %v", err)
	}

	later := make(chan struct{})
	g.Start(t.Context(), "patient", slowStopTimeouter{slow{end: later, timeout: 10 * time.Minute}})
	stopped := make(chan error, 1)
	go func() { stopped <- g.Stop() }()
	select {
	case err := <-stopped:
		t.Fatalf("the group did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(later)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
