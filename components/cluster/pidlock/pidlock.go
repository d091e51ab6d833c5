// Package pidlock says which process is the one of its name: who holds the lock on a
// PID file, how it is ended, and whose turn it is to start a cluster or to take it away.
package pidlock

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Lock is held by the one process of its name as long as it lives: an
// flock on its PID file, which the kernel lets go of however the process ends.
type Lock struct{ file *os.File }

// ErrHeld says that another process has the lock.
var ErrHeld = errors.New("held by another process")

// Take takes the lock and writes the PID, or returns ErrHeld.
func Take(path string) (*Lock, error) {
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
	return &Lock{file: f}, nil
}

// lockAlone locks f, or returns ErrHeld. Who only asks for the holder has the lock
// for an instant, too, with others who ask, and is waited for.
func lockAlone(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			if err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
				return ErrHeld
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

// Release lets go of the lock. The file stays, for removing it could take
// another's lock away.
func (l *Lock) Release() {
	_ = l.file.Truncate(0)
	l.file.Close()
}

// dyingTime bounds the wait for the end of a process that was killed.
const dyingTime = 10 * time.Second

// Holder returns the PID of the process that holds the lock at path, 0 if
// nobody does. One that was killed is not counted, and waited for.
func Holder(path string) (int, error) {
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
