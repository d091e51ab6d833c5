package pidlock

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"hyperkube/internal/layout"
)

func TestTurn(t *testing.T) {
	l := layout.Under(t.TempDir())
	ctx := t.Context()
	// Several may start something, ...
	a, err := TakeTurn(ctx, l, false)
	if err != nil {
		t.Fatal(err)
	}
	b, err := TakeTurn(ctx, l, false)
	if err != nil {
		t.Fatal(err)
	}
	// ... which who takes it away waits for.
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := TakeTurn(ended, l, true); !errors.Is(err, context.Canceled) {
		t.Errorf("taken while others have it: %v", err)
	}
	a.End()
	b.End()
	// Many take it away at once: one after the other, though each leaves
	// nothing behind, not even the file.
	var inside atomic.Int32
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			alone, err := TakeTurn(ctx, l, true)
			if err != nil {
				t.Error(err)
				return
			}
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d at once", n)
			}
			if _, err := TakeTurn(ctx, l, false); !errors.Is(err, ErrHeld) {
				t.Errorf("started while it is taken away: %v", err)
			}
			inside.Add(-1)
			alone.Remove()
		})
	}
	group.Wait()
	if _, err := os.Stat(l.Run + ".lock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock's file stays: %v", err)
	}
}
