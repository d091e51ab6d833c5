package pidlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// End asks pid to end and waits, by its pidfd; when ctx ends first it is
// killed. who tells the PID once more when the pidfd is open: the number may have
// become another's before.
func End(ctx context.Context, pid int, who func() (int, error)) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if now, err := who(); err != nil || now != pid {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signalling process %d: %w", pid, err)
	}
	if waitPidfd(ctx, fd) == nil {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing process %d: %w", pid, err)
	}
	killed, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return waitPidfd(killed, fd)
}

// waitPidfd blocks until the process of fd has ended or ctx ends.
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
