package localnodes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// isNamespace reports whether a namespace is bind-mounted at path.
func isNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// ensureNamespace creates a network namespace that is bind mounted at path, unless there is one.
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
	return onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
}

// InNamespace runs f on a thread in the network namespace at path. The netlink calls of f, and processes
// that f starts from its goroutine, are in that namespace. The error is os.ErrNotExist if there is
// no namespace at path.
func InNamespace(path string, f func() error) error {
	if !isNamespace(path) {
		return fmt.Errorf("there is no network namespace at %s: %w", path, os.ErrNotExist)
	}
	return onOwnThread(func() error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening the network namespace %s: %w", path, err)
		}
		err = unix.Setns(fd, unix.CLONE_NEWNET)
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return fmt.Errorf("switching to the network namespace %s: %w", path, err)
		}
		return f()
	})
}

// InNodeNamespace is like InNamespace, but for starting the processes of a node: the hostname of these processes, and
// of the node's pods with host network, is name. If name is too long for the kernel, they have the hostname of the
// machine.
func InNodeNamespace(path, name string, f func() error) error {
	return InNamespace(path, func() error {
		if len(name) > maxHostname {
			return f()
		}
		if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("creating a namespace for the hostname: %w", err)
		}
		if err := unix.Sethostname([]byte(name)); err != nil {
			return fmt.Errorf("setting the hostname: %w", err)
		}
		return f()
	})
}

// maxHostname is the maximum length of a hostname in the kernel (__NEW_UTS_LEN).
const maxHostname = 64

// InEmptyNamespace runs f on a thread in a new network namespace without links or rules, which exists only for that
// thread.
func InEmptyNamespace(f func() error) error {
	return onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("creating a network namespace: %w", err)
		}
		return f()
	})
}

// onOwnThread runs f on a new thread that exits afterwards, because f changes the namespaces of the thread.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread is never unlocked, so the Go runtime does not reuse it.
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}
