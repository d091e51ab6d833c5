package localnodes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// isNamespace tells whether a namespace is mounted at path.
func isNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// ensureNamespace makes a network namespace that the mount at path holds.
func ensureNamespace(path string) error {
	if isNamespace(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	return apart(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
}

// Inside runs f on a thread in the network namespace at path: its netlink
// calls, and the processes that it starts from its own goroutine, are there.
// Without a namespace at path, the error is os.ErrNotExist.
func Inside(path string, f func() error) error {
	if !isNamespace(path) {
		return fmt.Errorf("there is no network namespace at %s: %w", path, os.ErrNotExist)
	}
	return apart(func() error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening the network namespace %s: %w", path, err)
		}
		err = unix.Setns(fd, unix.CLONE_NEWNET)
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return fmt.Errorf("entering the network namespace %s: %w", path, err)
		}
		return f()
	})
}

// AsNode is Inside for starting a node's processes: they, and the pods of theirs
// that are in the host's network, have the node's name for the host's. A name
// that is too long for the kernel is not set.
func AsNode(path, name string, f func() error) error {
	return Inside(path, func() error {
		if len(name) > maxHostname {
			return f()
		}
		if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("making a namespace for the hostname: %w", err)
		}
		if err := unix.Sethostname([]byte(name)); err != nil {
			return fmt.Errorf("setting the hostname: %w", err)
		}
		return f()
	})
}

// maxHostname is the kernel's bound, __NEW_UTS_LEN.
const maxHostname = 64

// Nowhere runs f on a thread in an empty network namespace, which ends with it.
func Nowhere(f func() error) error {
	return apart(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("making a network namespace: %w", err)
		}
		return f()
	})
}

// apart runs f on a thread that ends after it.
func apart(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread must not serve others again.
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}
