// Package pidlock manages the locks of the processes of a node: a lock on a PID file for each
// process, how the holder of such a lock is terminated, and the lock that prevents a cluster from
// being started and stopped at the same time.
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

// Lock is an flock on the PID file of a process. The kernel releases it when the process exits.
type Lock struct{ file *os.File }

// ErrHeld is returned by functions that acquire a lock if another process holds the lock.
var ErrHeld = errors.New("held by another process")

// Acquire locks the PID file at path, which it creates, and writes the PID of this process to it. It returns ErrHeld if
// another process holds the lock.
func Acquire(path string) (*Lock, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("creating the directory of the PID file: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the PID file: %w", err)
	}
	if err := lockExclusive(f); err != nil {
		f.Close()
		return nil, err
	}
	if err := errors.Join(f.Truncate(0), writeAt0(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		f.Close()
		return nil, fmt.Errorf("writing %s: %w", path, err)
	}
	return &Lock{file: f}, nil
}

// lockExclusive locks f exclusively, or returns ErrHeld. Processes that call Holder hold a shared lock
// for a short time; lockExclusive waits for these.
func lockExclusive(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			if err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
				return ErrHeld
			}
			if err == nil {
				if err = unix.Flock(int(f.Fd()), unix.LOCK_UN); err == nil {
					time.Sleep(rand.N(time.Millisecond)) // another process may do the same
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

// writeAt0 writes text at the start of f.
func writeAt0(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// Release empties the file and releases the lock. The file is kept, because another process may have locked it by then.
func (l *Lock) Release() {
	_ = l.file.Truncate(0)
	l.file.Close()
}

// exitTimeout limits how long Holder waits for the exit of a killed process.
const exitTimeout = 10 * time.Second

// Holder returns the PID of the process that holds the lock at path, or 0 if there is none. If that process was killed
// or is exiting, Holder waits for its exit, at most for exitTimeout.
func Holder(path string) (int, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("opening the PID file: %w", err)
	}
	defer f.Close()
	deadline := time.Now().Add(exitTimeout)
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
			return 0, nil
		} else if !errors.Is(err, unix.EWOULDBLOCK) {
			return 0, fmt.Errorf("checking the lock of %s: %w", path, err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return 0, fmt.Errorf("reading the PID file: %w", err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		// The file is empty for a short time after locking and before releasing.
		if err != nil && time.Now().After(deadline) {
			return 0, fmt.Errorf("%s is locked but contains no PID: %w", path, err)
		}
		if err == nil && (!exiting(pid) || time.Now().After(deadline)) {
			return pid, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// exiting reports whether a process was killed or is exiting. A process with much memory needs some
// time to exit, and the kernel releases its locks at the end.
func exiting(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 6 {
			const pfExiting = 4 // PF_EXITING in <linux/sched.h>
			if flags, err := strconv.ParseUint(fields[6], 10, 32); err == nil && flags&pfExiting != 0 {
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
			// ShdPnd (process-wide) stays set until the exit. A thread clears SigPnd some time
			// before it is reported as exiting.
			pending, err := strconv.ParseUint(value, 16, 64)
			if err == nil && pending&(1<<(unix.SIGKILL-1)) != 0 {
				return true
			}
		}
	}
	return false
}
