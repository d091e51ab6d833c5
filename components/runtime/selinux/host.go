package selinux

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	lib "github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"
)

// ErrNoPolicy tells that the host's policy does not know containers.
var ErrNoPolicy = errors.New("the SELinux policy of this host has no labels for containers (package container-selinux)")

// Detect looks at the host: nil without SELinux. What it costs there is a look at
// one folder and one file.
func Detect() (*Host, error) {
	if !lib.GetEnabled() {
		return nil, nil
	}
	process, file := lib.ContainerLabels()
	if process == "" || file == "" {
		return nil, ErrNoPolicy
	}
	lib.ReleaseLabel(process) // we count levels ourselves
	return newHost(linux{}, process, file, lib.ROFileLabel())
}

// linux asks the kernel.
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

// Start calls f, which starts a program, so that the program gets label. An empty
// label is the policy's choice.
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
		// Never unlocked: the thread, whose label for programs it is, ends.
		runtime.LockOSThread()
		if err := lib.SetExecLabel(label); err != nil {
			done <- result{err: fmt.Errorf("asking for SELinux label %s: %w", label, err)}
			return
		}
		p, err := f()
		if errors.Is(err, unix.EACCES) {
			err = fmt.Errorf("%w: %w", refused(label), err)
		}
		done <- result{p, err}
	}()
	r := <-done
	return r.process, r.err
}

// refused says what keeps a program from being started.
func refused(label string) error {
	own, err := lib.CurrentLabel()
	if err != nil {
		own = "unknown"
	}
	return fmt.Errorf("the SELinux policy may keep %s from starting processes as %s (the program's file wants the type container_runtime_exec_t)", own, label)
}
