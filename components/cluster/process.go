package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/internal/layout"
)

// processLock is held by the one process of its name as long as it lives: an
// flock on its PID file, which the kernel lets go of however the process ends.
type processLock struct{ file *os.File }

// errHeld says that another process has the lock.
var errHeld = errors.New("held by another process")

// takeLock takes the lock and writes the PID, or returns errHeld.
func takeLock(path string) (*processLock, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("making the directory of the PID file: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the PID file: %w", err)
	}
	if err := lockAlone(f); err != nil {
		f.Close()
		return nil, err
	}
	if err := errors.Join(f.Truncate(0), writeAt0(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		f.Close()
		return nil, fmt.Errorf("writing %s: %w", path, err)
	}
	return &processLock{file: f}, nil
}

// lockAlone locks f, or returns errHeld. Who only asks for the holder has the lock
// for an instant, too, with others who ask, and is waited for.
func lockAlone(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			if err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
				return errHeld
			}
			if err == nil {
				if err = unix.Flock(int(f.Fd()), unix.LOCK_UN); err == nil {
					time.Sleep(rand.N(time.Millisecond)) // another may do just the same
					continue
				}
			}
		}
		if err != nil {
			return fmt.Errorf("locking %s: %w", f.Name(), err)
		}
		return nil
	}
}

func writeAt0(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// release lets go of the lock. The file stays, for removing it could take
// another's lock away.
func (l *processLock) release() {
	_ = l.file.Truncate(0)
	l.file.Close()
}

// dyingTime bounds the wait for the end of a process that was killed.
const dyingTime = 10 * time.Second

// holder returns the PID of the process that holds the lock at path, 0 if
// nobody does. One that was killed is not counted, and waited for.
func holder(path string) (int, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("opening the PID file: %w", err)
	}
	defer f.Close()
	deadline := time.Now().Add(dyingTime)
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
			return 0, nil
		} else if !errors.Is(err, unix.EWOULDBLOCK) {
			return 0, fmt.Errorf("asking for the lock of %s: %w", path, err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return 0, fmt.Errorf("reading the PID file: %w", err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		// It names nobody for an instant after it is locked and before it is let go.
		if err != nil && time.Now().After(deadline) {
			return 0, fmt.Errorf("%s is held, but names no process: %w", path, err)
		}
		if err == nil && (!dying(pid) || time.Now().After(deadline)) {
			return pid, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// dying tells whether a process was killed and is only not gone yet: a large one
// needs a moment to give its memory back, and its locks are the last to go.
func dying(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 6 {
			const exiting = 4 // PF_EXITING of <linux/sched.h>
			if flags, err := strconv.ParseUint(fields[6], 10, 32); err == nil && flags&exiting != 0 {
				return true
			}
		}
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch name {
		case "State":
			if strings.HasPrefix(value, "Z") || strings.HasPrefix(value, "X") {
				return true
			}
		case "SigPnd", "ShdPnd":
			// That of the whole process stays until its end: the thread has
			// taken its own some time before it is seen to exit.
			pending, err := strconv.ParseUint(value, 16, 64)
			if err == nil && pending&(1<<(unix.SIGKILL-1)) != 0 {
				return true
			}
		}
	}
	return false
}

// endProcess asks pid to end and waits, by its pidfd; when ctx ends first it is
// killed. who tells the PID once more when the pidfd is open: the number may have
// become another's before.
func endProcess(ctx context.Context, pid int, who func() (int, error)) error {
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

// turn is held by who starts or takes away a cluster, so that these never
// happen at once: an flock on a file beside the folder that is taken away.
type turn struct {
	file *os.File
	path string
}

// takeTurn takes the turn for the cluster at l. Alone, nobody else may have it,
// and it is waited for; else several may have it at once, and errHeld says that
// somebody has it alone.
func takeTurn(ctx context.Context, l layout.Node, alone bool) (*turn, error) {
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
			return &turn{file: f, path: path}, nil
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
			return errHeld
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

// end gives the turn to the next.
func (t *turn) end() { t.file.Close() }

// remove ends the turn and leaves nothing of it. Only who has it alone may.
func (t *turn) remove() {
	_ = os.Remove(t.path) // the next makes it again
	t.file.Close()
}
