package selinux

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	lib "github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"
)

// ErrNoPolicy is returned by Detect if SELinux is enabled but the host's policy defines no labels for containers.
var ErrNoPolicy = errors.New("the SELinux policy of this host has no labels for containers (package container-selinux)")

// Detect returns the Host, or nil if SELinux is not enabled. In that case it reads only one directory and one
// file. It returns ErrNoPolicy if SELinux is enabled but the policy has no labels for containers.
func Detect() (*Host, error) {
	if !lib.GetEnabled() {
		return nil, nil
	}
	process, file := lib.ContainerLabels()
	if process == "" || file == "" {
		return nil, ErrNoPolicy
	}
	lib.ReleaseLabel(process) // levels are allocated by this package
	return newHost(linux{}, process, file, lib.ROFileLabel())
}

// linux implements policyKernel by asking the SELinux policy of the host's kernel.
type linux struct{}

func (linux) check(label string) error {
	err := lib.SecurityCheckContext(label)
	if errors.Is(err, unix.EINVAL) {
		return errUnknown
	}
	return err
}

func (linux) setFile(path, label string) error { return lib.SetFileLabel(path, label) }

func (linux) relabel(path, label string) error { return lib.Chcon(path, label, true) }

// Start calls f, which must start a program, so that the program runs with the SELinux label. f runs on another
// thread. With an empty label it only calls f, on this thread, and the policy decides.
func Start(label string, f func() (*os.Process, error)) (*os.Process, error) {
	if label == "" {
		return f()
	}
	type result struct {
		process *os.Process
		err     error
	}
	done := make(chan result, 1)
	go func() {
		// The thread stays locked, so that it exits and its exec label is not used again.
		runtime.LockOSThread()
		if err := lib.SetExecLabel(label); err != nil {
			done <- result{err: fmt.Errorf("setting SELinux exec label %s: %w", label, err)}
			return
		}
		p, err := f()
		if errors.Is(err, unix.EACCES) {
			err = fmt.Errorf("%w: %w", startError(label), err)
		}
		done <- result{p, err}
	}()
	r := <-done
	return r.process, r.err
}

// startError returns an error that explains why the policy may not allow this program to start processes with the
// label.
func startError(label string) error {
	current, err := lib.CurrentLabel()
	if err != nil {
		current = "unknown"
	}
	return fmt.Errorf("the SELinux policy may prevent %s from starting processes as %s (the program file needs the type container_runtime_exec_t)", current, label)
}
