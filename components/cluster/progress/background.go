package progress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"hyperkube/internal/cgroup"
)

// stepsFD is the descriptor on which a process started in the background tells
// its steps; stepsEnv says that there is one.
const (
	stepsFD  = 3
	stepsEnv = "HYPERKUBE_STEPS_FD"
)

// StartBackground starts this program again with args, apart from the terminal
// and writing to logFile, and passes on its steps until it is ready. When ctx
// ends first, it is asked to stop. env is what its environment has besides ours.
func StartBackground(ctx context.Context, args []string, logFile string, tell func(Step), env ...string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(logFile), 0o755); err != nil {
		return fmt.Errorf("making the log directory: %w", err)
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("looking for the end of the log: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	defer r.Close()
	cmd := exec.Command(self, args...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{w}
	cmd.Env = append(append(os.Environ(), env...), fmt.Sprintf("%s=%d", stepsEnv, stepsFD))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		w.Close()
		return fmt.Errorf("starting in the background: %w", err)
	}
	w.Close()
	if groups, err := cgroup.Open(); err == nil {
		_ = outlive(groups, cmd.Process.Pid) // where it may not go it stays
	}
	told := make(chan error, 1)
	go func() { told <- receiveSteps(r, tell) }()
	select {
	case err := <-told:
		if errors.Is(err, io.ErrUnexpectedEOF) {
			ended := fmt.Errorf("the process in the background ended before it was ready (%w): see %s", cmd.Wait(), logFile)
			if last := lastError(logFile, before); last != "" {
				ended = fmt.Errorf("%w, where it says: %s", ended, last)
			}
			return ended
		}
		if err == nil {
			// It is nobody's child from now on.
			return cmd.Process.Release()
		}
		_ = cmd.Wait()
		return err
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}
}

// lastError is the last error that was written to a log after offset bytes, or
// what a panic begins with; empty if there is none in its last 64 KB.
func lastError(logFile string, offset int64) string {
	f, err := os.Open(logFile)
	if err != nil {
		return ""
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	offset = max(offset, end-64<<10)
	data, err := io.ReadAll(io.NewSectionReader(f, offset, end-offset))
	if err != nil {
		return ""
	}
	last := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if _, said, isError := strings.Cut(line, " level=ERROR "); isError {
			last = said
		}
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return line // what follows are stacks
		}
	}
	return last
}

// outlive takes a process out of the cgroup of who started it, such as a session's
// that a service manager ends with all processes in it. In hierarchies of version 1
// there is one such cgroup for each controller, and leaving them all takes long.
func outlive(groups *cgroup.Manager, pid int) error {
	if !groups.Unified() {
		return nil
	}
	return groups.Enter("/", pid)
}

// ToStarter returns where to tell steps when this process was started by
// StartBackground, or false.
func ToStarter() (func(Step), bool) {
	if os.Getenv(stepsEnv) == "" {
		return nil, false
	}
	_ = os.Unsetenv(stepsEnv) // fails for a name that is none
	syscall.CloseOnExec(stepsFD)
	return sendSteps(os.NewFile(stepsFD, "steps")), true
}
