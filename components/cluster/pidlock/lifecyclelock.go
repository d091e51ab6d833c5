package pidlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/layout"
)

// LifecycleLock is a lock on a cluster. Processes that start something hold it shared, processes that stop and remove
// the cluster hold it exclusively. It is an flock on a file next to the run directory, because the run directory is
// deleted with the cluster.
type LifecycleLock struct {
	file *os.File
	path string
}

// AcquireLifecycle takes the lock of the cluster at l. If exclusive is set, the lock is exclusive, and AcquireLifecycle
// waits until no other process holds it. Otherwise it is shared, and AcquireLifecycle returns ErrHeld if
// another process holds it exclusively.
func AcquireLifecycle(ctx context.Context, l layout.Node, exclusive bool) (*LifecycleLock, error) {
	path := l.Run + ".lock"
	for {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("creating the directory of the lock: %w", err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue // the directory was just deleted
		}
		if err != nil {
			return nil, fmt.Errorf("opening the lock: %w", err)
		}
		if err := lockLifecycle(ctx, f, exclusive); err != nil {
			return nil, err
		}
		// The previous holder may have deleted the file, and another process may have locked a new
		// one.
		var locked, current unix.Stat_t
		if unix.Fstat(int(f.Fd()), &locked) == nil && unix.Stat(path, &current) == nil && locked.Ino == current.Ino && locked.Dev == current.Dev {
			return &LifecycleLock{file: f, path: path}, nil
		}
		f.Close()
	}
}

// lockLifecycle locks the lifecycle lock file f: exclusively for a command that stops or removes the cluster, and shared
// for one that starts it. It closes f on failure. If ctx is done first, the goroutine that waits for the
// lock closes f.
func lockLifecycle(ctx context.Context, f *os.File, exclusive bool) error {
	how := unix.LOCK_EX
	if !exclusive {
		how = unix.LOCK_SH | unix.LOCK_NB
	}
	done := make(chan error, 1)
	go func() {
		err := unix.Flock(int(f.Fd()), how)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(int(f.Fd()), how)
		}
		if err != nil || ctx.Err() != nil {
			f.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrHeld
		}
		if err != nil {
			return fmt.Errorf("locking %s: %w", f.Name(), err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for %s: %w", f.Name(), ctx.Err())
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for another process that stops the cluster: %w", ctx.Err())
	}
}

// Release releases the lock. The lock file is kept.
func (t *LifecycleLock) Release() { t.file.Close() }

// Remove releases the lock and deletes its file. The lock must be exclusive.
func (t *LifecycleLock) Remove() {
	_ = os.Remove(t.path) // the next holder creates it again
	t.file.Close()
}

// AcquireMain makes this process the main process of the cluster at l. It returns an error if there is
// another main process, or if the cluster is being stopped.
func AcquireMain(ctx context.Context, l layout.Node) (*Lock, error) {
	busy := errors.New("another process is starting or stopping hyperkube")
	t, err := AcquireLifecycle(ctx, l, false)
	if errors.Is(err, ErrHeld) {
		return nil, busy
	}
	if err != nil {
		return nil, err
	}
	// From now on, a process that stops the cluster terminates this process first.
	defer t.Release()
	lock, err := Acquire(l.PIDFile(layout.MainProcess))
	if errors.Is(err, ErrHeld) {
		return nil, busy
	}
	return lock, err
}
