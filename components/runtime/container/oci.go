//go:build cgo

package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/internal/atomicfile"
	"hyperkube/internal/cgroup"
	"hyperkube/internal/process"
)

// OCI starts containers through another program, one with the command line
// that runc has: that is what the handler of a RuntimeClass names. Namespaces
// of the pod, root and cgroups are ours all the same, so that programs which
// bring a machine of their own for a pod do not fit. Its methods are safe for
// several goroutines, but for several calls about one container.
//
// The first process of a container is not a child of ours: its exit code is
// known from Linux 6.15 on, and Unknown on older ones.
//
// https://kubernetes.io/docs/concepts/containers/runtime-class/
type OCI struct {
	// Binary is the program's absolute path.
	Binary string
	// State is a folder for what is remembered of containers; the program's
	// own state is in a folder below.
	State string
	// Cgroups of the machine.
	Cgroups *cgroup.Manager
}

// programState is the folder of the program's own state.
const programState = ".program"

// callTime bounds a call of the program.
const callTime = 2 * time.Minute

func (o *OCI) bundle(id string) string { return filepath.Join(o.State, id) }

// command is a call of the program, with what it says as part of the error.
func (o *OCI) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, o.Binary, append([]string{"--root", filepath.Join(o.State, programState)}, args...)...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	return cmd
}

func (o *OCI) call(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	cmd := o.command(ctx, args...)
	// A file, not a pipe: what it leaves running could keep a pipe open.
	return o.finish(cmd, args[0])
}

// finish runs a prepared command to its end; what it writes to its log is part
// of the error.
func (o *OCI) finish(cmd *exec.Cmd, what string) error {
	log, err := os.CreateTemp("", "oci-log-")
	if err != nil {
		return fmt.Errorf("calling %s: %w", o.Binary, err)
	}
	defer os.Remove(log.Name())
	defer log.Close()
	cmd.Args = append([]string{cmd.Args[0], "--log", log.Name()}, cmd.Args[1:]...)
	if cmd.Stdout == nil && cmd.Stderr == nil {
		cmd.Stdout, cmd.Stderr = log, log
	}
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log.Name())
		if len(text) > 4096 {
			text = text[len(text)-4096:]
		}
		return fmt.Errorf("%s %s: %w: %s", o.Binary, what, err, strings.TrimSpace(string(text)))
	}
	return nil
}

// Prepare does nothing: the program makes what it needs.
func (o *OCI) Prepare(string) error { return nil }

// Start makes the container and starts its first process.
func (o *OCI) Start(id string, spec *specs.Spec, io IO) (running *Running, err error) {
	dir := o.bundle(id)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("making the container's bundle: %w", err)
	}
	data, err := json.Marshal(spec)
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: filepath.Join(dir, "config.json"), Data: data, Mode: 0o600, Remakeable: true})
	}
	if err != nil {
		return nil, fmt.Errorf("writing the container's bundle: %w", err)
	}
	pidFile := filepath.Join(dir, "pid")
	args := []string{"create", "--bundle", dir, "--pid-file", pidFile}
	console, err := newConsoleSocket(spec.Process.Terminal)
	if err != nil {
		return nil, err
	}
	defer console.Close()
	args = append(args, console.args()...)
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	cmd := o.command(ctx, append(args, id)...)
	io.give(cmd)
	if err := o.finish(cmd, "create"); err != nil {
		return nil, errors.Join(err, o.call("delete", "--force", id))
	}
	defer func() {
		if err != nil {
			if running != nil {
				_ = running.Close()
			}
			err = errors.Join(err, o.call("delete", "--force", id))
			running = nil
		}
	}()
	pid, err := readPID(pidFile)
	if err != nil {
		return nil, err
	}
	h, err := process.Open(pid, 0)
	if err != nil {
		return nil, err
	}
	running = &Running{Handle: h}
	// Followed from now on, so that its end is seen however soon it comes.
	h.Done()
	if running.Console, err = console.receive(); err != nil {
		return running, err
	}
	if err := io.beforeStart(); err != nil {
		return running, err
	}
	return running, o.call("start", id)
}

// give passes the streams on.
func (io IO) give(cmd *exec.Cmd) {
	if io.Stdin != nil {
		cmd.Stdin = io.Stdin
	}
	if io.Stdout != nil {
		cmd.Stdout = io.Stdout
	}
	if io.Stderr != nil {
		cmd.Stderr = io.Stderr
	}
}

// Exec starts another process in a running container. The handle is that of the
// program's call, which lives as long and ends alike.
func (o *OCI) Exec(id string, e ExecOptions) (*Running, error) {
	data, err := os.ReadFile(filepath.Join(o.bundle(id), "config.json"))
	if err != nil {
		return nil, fmt.Errorf("reading the container's bundle: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("reading the container's bundle: %w", err)
	}
	how := spec.Process
	how.Args, how.Terminal = e.Args, e.Terminal
	if e.Terminal && !hasVariable(how.Env, "TERM") {
		how.Env = append(how.Env, "TERM=xterm")
	}
	work, err := os.MkdirTemp("", "oci-exec-")
	if err != nil {
		return nil, fmt.Errorf("preparing a process: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	if data, err = json.Marshal(how); err == nil {
		err = os.WriteFile(filepath.Join(work, "process.json"), data, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("preparing a process: %w", err)
	}
	pidFile := filepath.Join(work, "pid")
	args := []string{"exec", "--process", filepath.Join(work, "process.json"), "--pid-file", pidFile}
	console, err := newConsoleSocket(e.Terminal)
	if err != nil {
		return nil, err
	}
	defer console.Close()
	args = append(args, console.args()...)
	cmd := o.command(context.Background(), append(args, id)...)
	e.IO.give(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a process: %w", err)
	}
	h, err := process.Open(cmd.Process.Pid, 0)
	if err != nil {
		_ = cmd.Process.Kill()
		return nil, errors.Join(err, cmd.Wait())
	}
	running := &Running{Handle: h}
	running.Console, err = console.receiveUntil(h.Done())
	if err == nil {
		// The file goes with the folder; killing the call would not kill
		// what it waits for.
		running.inner, err = innerProcess(pidFile, h.Done())
	}
	if err != nil {
		_ = h.Signal(unix.SIGKILL)
		<-h.Done()
		h.Close()
		return nil, err
	}
	return running, nil
}

// innerProcess waits for the number of the process that a call waits for; nil
// if the call ends first.
func innerProcess(pidFile string, done <-chan struct{}) (*process.Handle, error) {
	// The program tells of it by nothing but the file.
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(callTime)
	for {
		if pid, err := readPID(pidFile); err == nil {
			h, err := process.Open(pid, 0)
			if errors.Is(err, process.ErrGone) {
				return nil, nil
			}
			return h, err
		}
		select {
		case <-done:
			return nil, nil
		case <-ticker.C:
		case <-deadline:
			return nil, errors.New("the process did not start in time")
		}
	}
}

func readPID(file string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("reading a process's number: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("reading a process's number: %q is none", data)
	}
	return pid, nil
}

// Update changes the limits of a running container.
func (o *OCI) Update(id string, resources *runtimeapi.LinuxContainerResources) error {
	data, err := json.Marshal(Resources(resources, o.Cgroups.Unified()))
	if err != nil {
		return fmt.Errorf("updating the container's resources: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	cmd := o.command(ctx, "update", "--resources", "-", id)
	cmd.Stdin = bytes.NewReader(data)
	return o.finish(cmd, "update")
}

// Resume cannot tell what has become of a Start that was cut short.
func (o *OCI) Resume(string) (*process.Handle, Progress) { return nil, Lost }

// KillAll kills every process of the container.
func (o *OCI) KillAll(cgroupPath string) error { return o.Cgroups.Kill(cgroupPath) }

// Delete removes all that Start has made of a container whose processes have
// ended or were killed. What is not there is no error.
func (o *OCI) Delete(ctx context.Context, id, cgroupPath string) error {
	if _, err := os.Stat(o.bundle(id)); err == nil {
		err := o.call("delete", "--force", id)
		if _, gone := os.Stat(o.Binary); errors.Is(gone, os.ErrNotExist) {
			// Without the program its own state is all that is left.
			err = os.RemoveAll(filepath.Join(o.State, programState, id))
		}
		if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return errors.Join(o.Cgroups.Remove(ctx, cgroupPath), os.RemoveAll(o.bundle(id)))
}

// consoleSocket receives a terminal by a socket's path; nil receives none.
type consoleSocket struct {
	dir      string
	listener *net.UnixListener
}

func newConsoleSocket(wanted bool) (*consoleSocket, error) {
	if !wanted {
		return nil, nil
	}
	// Paths of sockets are short.
	dir, err := os.MkdirTemp("", "oci-tty-")
	if err != nil {
		return nil, fmt.Errorf("making a socket for the terminal: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("making a socket for the terminal: %w", err)
	}
	return &consoleSocket{dir: dir, listener: l}, nil
}

func (s *consoleSocket) args() []string {
	if s == nil {
		return nil
	}
	return []string{"--console-socket", filepath.Join(s.dir, "s")}
}

// Close removes the socket.
func (s *consoleSocket) Close() {
	if s != nil {
		_ = s.listener.Close()
		_ = os.RemoveAll(s.dir)
	}
}

// receive returns the terminal that was sent.
func (s *consoleSocket) receive() (*os.File, error) { return s.receiveUntil(nil) }

// receiveUntil gives up when done is closed.
func (s *consoleSocket) receiveUntil(done <-chan struct{}) (*os.File, error) {
	if s == nil {
		return nil, nil
	}
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-done:
			_ = s.listener.SetDeadline(time.Unix(1, 0))
		case <-over:
		}
	}()
	_ = s.listener.SetDeadline(time.Now().Add(callTime))
	conn, err := s.listener.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("receiving the terminal: %w", err)
	}
	defer conn.Close()
	name, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(name, oob)
	if err != nil {
		return nil, fmt.Errorf("receiving the terminal: %w", err)
	}
	return terminalOf(oob[:n])
}
