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

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/cgroup"
)

// stepsFD is the descriptor to which a process started in the background writes its steps. stepsEnv
// is the environment variable that announces it.
const (
	stepsFD  = 3
	stepsEnv = "HYPERKUBE_STEPS_FD"
)

// StartBackground starts this program with args in a new session, with logFile as output. It passes the steps of the
// process to send, and returns nil when the process is ready. If the start fails, it returns the error of the process
// and its exit code. If ctx is done first, the process gets SIGTERM. env is added to its environment.
func StartBackground(ctx context.Context, args []string, logFile string, send func(Step), env ...string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the hyperkube binary: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(logFile), 0o755); err != nil {
		return fmt.Errorf("creating the log directory: %w", err)
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("getting the size of the log: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("creating a pipe: %w", err)
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
		_ = moveToRootCgroup(groups, cmd.Process.Pid) // on failure, it stays in its cgroup
	}
	result := make(chan error, 1)
	go func() { result <- receiveSteps(r, send) }()
	select {
	case err := <-result:
		if errors.Is(err, io.ErrUnexpectedEOF) {
			exited := fmt.Errorf("the background process exited before it was ready (%w); see %s", cmd.Wait(), logFile)
			if last := lastError(logFile, before); last != "" {
				exited = fmt.Errorf("%w, last error: %s", exited, last)
			}
			return exited
		}
		if err == nil {
			// A parent that keeps running, such as a main process that starts additional nodes,
			// reaps it.
			go func() { _ = cmd.Wait() }()
			return nil
		}
		_ = cmd.Wait()
		return err
	case <-ctx.Done():
		// The background process may leave a container runtime running. If this process is stopping too,
		// as a main process that starts additional nodes, it becomes the parent of the runtime and reaps
		// it (see pidlock.ReapChildren), because process 1 may not.
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}
}

// lastError returns the last error message that was logged after offset bytes, or the first line of
// a panic. It reads at most the last 64 KB, and returns "" if there is none.
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
		if _, message, isError := strings.Cut(line, " level=ERROR "); isError {
			last = message
		}
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return line // the stack trace follows
		}
	}
	return last
}

// moveToRootCgroup moves a process out of the cgroup of its parent, which may be a session that a service
// manager terminates with all its processes. It does nothing with cgroup v1, because that has a
// hierarchy for each controller and leaving all of them is slow.
func moveToRootCgroup(groups *cgroup.Manager, pid int) error {
	if !groups.Unified() {
		return nil
	}
	return groups.AddProcess("/", pid)
}

// ParentSteps returns a function that sends steps to the process that started this one with
// StartBackground; false if it was not started like that.
func ParentSteps() (func(Step), bool) {
	if os.Getenv(stepsEnv) == "" {
		return nil, false
	}
	_ = os.Unsetenv(stepsEnv) // fails only for an invalid name
	syscall.CloseOnExec(stepsFD)
	return sendSteps(os.NewFile(stepsFD, "steps")), true
}
