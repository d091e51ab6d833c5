package pidlock

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"hyperkube/internal/host/layout"
)

func TestLifecycleLock(t *testing.T) {
	l := layout.Under(t.TempDir())
	ctx := t.Context()
	// Several processes may start something ...
	a, err := AcquireLifecycle(ctx, l, false)
	if err != nil {
		t.Fatal(err)
	}
	b, err := AcquireLifecycle(ctx, l, false)
	if err != nil {
		t.Fatal(err)
	}
	// ... and a process that stops the cluster waits for them.
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := AcquireLifecycle(canceled, l, true); !errors.Is(err, context.Canceled) {
		t.Errorf("taken exclusively while it is shared: %v", err)
	}
	a.Release()
	b.Release()
	// Many processes stop the cluster concurrently: one after another, although each deletes the
	// lock file.
	var inside atomic.Int32
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			exclusive, err := AcquireLifecycle(ctx, l, true)
			if err != nil {
				t.Error(err)
				return
			}
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d holders of the exclusive lock", n)
			}
			if _, err := AcquireLifecycle(ctx, l, false); !errors.Is(err, ErrHeld) {
				t.Errorf("shared lock taken while it is held exclusively: %v", err)
			}
			inside.Add(-1)
			exclusive.Remove()
		})
	}
	group.Wait()
	if _, err := os.Stat(l.Run + ".lock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock file still exists: %v", err)
	}
}
