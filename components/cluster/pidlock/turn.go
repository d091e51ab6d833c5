package pidlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hyperkube/internal/layout"
)

// Turn is held by who starts or takes away a cluster, so that these never
// happen at once: an flock on a file beside the folder that is taken away.
type Turn struct {
	file *os.File
	path string
}

// TakeTurn takes the turn for the cluster at l. Alone, nobody else may have it,
// and it is waited for; else several may have it at once, and ErrHeld says that
// somebody has it alone.
func TakeTurn(ctx context.Context, l layout.Node, alone bool) (*Turn, error) {
	path := l.Run + ".lock"
	for {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("making the directory of the lock: %w", err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue // its folder was taken away meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("opening the lock: %w", err)
		}
		if err := lockTurn(ctx, f, alone); err != nil {
			return nil, err
		}
		// Who had it before may have removed the file, and another may have
		// the one that is there now.
		var locked, there unix.Stat_t
		if unix.Fstat(int(f.Fd()), &locked) == nil && unix.Stat(path, &there) == nil && locked.Ino == there.Ino && locked.Dev == there.Dev {
			return &Turn{file: f, path: path}, nil
		}
		f.Close()
	}
}

// lockTurn locks f, or closes it. When ctx ends first f is left to the
// goroutine that waits for it.
func lockTurn(ctx context.Context, f *os.File, alone bool) error {
	how := unix.LOCK_EX
	if !alone {
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
		return fmt.Errorf("waiting for another process that takes the cluster away: %w", ctx.Err())
	}
}

// End gives the turn to the next.
func (t *Turn) End() { t.file.Close() }

// Remove ends the turn and leaves nothing of it. Only who has it alone may.
func (t *Turn) Remove() {
	_ = os.Remove(t.path) // the next makes it again
	t.file.Close()
}

// TakeMain makes this process the main one of the cluster at l, unless another
// is it or takes the cluster away.
func TakeMain(ctx context.Context, l layout.Node) (*Lock, error) {
	busy := errors.New("hyperkube is being started or stopped by another process")
	t, err := TakeTurn(ctx, l, false)
	if errors.Is(err, ErrHeld) {
		return nil, busy
	}
	if err != nil {
		return nil, err
	}
	// From then on whoever takes the cluster away ends this process first.
	defer t.End()
	lock, err := Take(l.PIDFile(layout.MainProcess))
	if errors.Is(err, ErrHeld) {
		return nil, busy
	}
	return lock, err
}
