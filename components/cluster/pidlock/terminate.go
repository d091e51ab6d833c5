package pidlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Terminate terminates the process pid with SIGTERM and waits until it has exited. When ctx is done
// first, it kills the process. holder returns the PID again after the pidfd was opened, because the
// PID may have been reused.
func Terminate(ctx context.Context, pid int, holder func() (int, error)) error {
	e, err := sendSIGTERM(pid, holder)
	if err != nil || e == nil {
		return err
	}
	return e.Wait(ctx)
}

// Termination is a process that has received SIGTERM and may not have exited yet. Wait waits for its exit.
type Termination struct{ pid, fd int }

// TerminateHolder sends SIGTERM to the process that holds the lock at path and waits until it has released
// the lock. When ctx is canceled first, the process is killed. The process may still wait for its
// children: the caller stops these and calls Wait. TerminateHolder returns nil if no process holds the lock.
func TerminateHolder(ctx context.Context, path string) (*Termination, error) {
	holder := func() (int, error) { return Holder(path) }
	pid, err := holder()
	if err != nil || pid == 0 {
		return nil, err
	}
	e, err := sendSIGTERM(pid, holder)
	if err != nil || e == nil {
		return nil, err
	}
	// The kernel releases the lock of a process that exits, so this goroutine returns at the latest
	// then.
	released := make(chan error, 1)
	go func() { released <- waitReleased(path) }()
	select {
	case err := <-released:
		if err != nil {
			unix.Close(e.fd)
			return nil, err
		}
		return e, nil
	case <-ctx.Done():
		return nil, e.Wait(ctx)
	}
}

// waitReleased blocks until no process holds the lock at path.
func waitReleased(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the PID file: %w", err)
	}
	defer f.Close()
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_SH); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("waiting for the lock of %s: %w", path, err)
	}
	return nil
}

// sendSIGTERM sends SIGTERM to pid if holder still returns it. It returns nil if the process has exited
// or the PID was reused.
func sendSIGTERM(pid int, holder func() (int, error)) (*Termination, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", pid, err)
	}
	if now, err := holder(); err != nil || now != pid {
		unix.Close(fd)
		return nil, err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		unix.Close(fd)
		return nil, fmt.Errorf("sending SIGTERM to process %d: %w", pid, err)
	}
	return &Termination{pid: pid, fd: fd}, nil
}

// Wait blocks until the process has exited. When ctx is canceled first, it kills the process. Call
// it once.
func (e *Termination) Wait(ctx context.Context) error {
	defer unix.Close(e.fd)
	if waitPidfd(ctx, e.fd) == nil {
		return nil
	}
	if err := unix.PidfdSendSignal(e.fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing process %d: %w", e.pid, err)
	}
	killed, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return waitPidfd(killed, e.fd)
}

// waitPidfd blocks until the process of fd has exited or ctx is done.
func waitPidfd(ctx context.Context, fd int) error {
	for {
		timeout := time.Second
		if deadline, ok := ctx.Deadline(); ok {
			timeout = min(timeout, time.Until(deadline))
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(timeout, 0).Milliseconds()))
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for a process: %w", err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for a process: %w", ctx.Err())
		}
	}
}
