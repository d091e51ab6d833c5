package lifecycle

import (
	"context"
	"strings"
	"testing"
	"time"
)

// slow ends once it is let.
type slow struct {
	end     chan struct{}
	timeout time.Duration
}

func (s slow) Run(context.Context) error {
	<-s.end
	return nil
}

// patient says so.
type patient struct{ slow }

func (p patient) StopTimeout() time.Duration { return p.timeout }

// A group gives up on who takes longer than it allows, unless that one has said
// that it may.
func TestStopTimeout(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	g := Group{StopTimeout: time.Millisecond}
	g.Start(t.Context(), "slow", slow{end: end})
	if err := g.Stop(); err == nil || !strings.Contains(err.Error(), "slow: did not stop within 1ms") {
		t.Errorf("a component that does not end: %v", err)
	}

	later := make(chan struct{})
	g.Start(t.Context(), "patient", patient{slow{end: later, timeout: 10 * time.Minute}})
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
