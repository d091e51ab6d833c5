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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/process"
)

// OCI creates containers with an external OCI runtime that has the command line of runc. The handler of a RuntimeClass
// selects it. This project creates the pod's namespaces, the root file system and the cgroups, so runtimes that use a
// virtual machine per pod are not supported. Its methods are safe for concurrent use, except for concurrent calls for
// the same container.
//
// The first process of a container is not a child of this process. Its exit code is available since Linux 6.15; on
// older kernels the container's exit reason is Unknown.
//
// https://kubernetes.io/docs/concepts/containers/runtime-class/
type OCI struct {
	// Binary is the absolute path of the OCI runtime.
	Binary string
	// State is the directory of the bundles. The state of the OCI runtime is in a subdirectory.
	State string
	// Cgroups of the machine.
	Cgroups *cgroup.Manager
}

// programState is the name of the directory, in OCI.State, for the OCI runtime's own state.
const programState = ".program"

// callTimeout is how long a command of the OCI runtime may run before it is killed and the call fails.
const callTimeout = 2 * time.Minute

// bundle returns the directory with the OCI bundle of a container.
func (o *OCI) bundle(id string) string { return filepath.Join(o.State, id) }

// command returns a command of the OCI runtime with args. It is killed when ctx is done.
func (o *OCI) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, o.Binary, append([]string{"--root", filepath.Join(o.State, programState)}, args...)...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	return cmd
}

// call runs a command of the OCI runtime and waits until it exits. It is killed after callTimeout.
func (o *OCI) call(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	cmd := o.command(ctx, args...)
	// Use a file for the output, because processes that the runtime leaves running would keep a
	// pipe open.
	return o.finish(cmd, args[0])
}

// finish runs cmd, a command of the OCI runtime, and waits until it exits. what is its name for errors. If it fails,
// the end of its log and output becomes part of the error.
func (o *OCI) finish(cmd *exec.Cmd, what string) error {
	log, err := os.CreateTemp("", "oci-log-")
	if err != nil {
		return fmt.Errorf("running %s: %w", o.Binary, err)
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

// Prepare does nothing, because the OCI runtime creates what it needs.
func (o *OCI) Prepare(string) error { return nil }

// Start creates the container and starts its first process. After an error, nothing of the container runs, and
// the OCI runtime has deleted it.
func (o *OCI) Start(id string, spec *specs.Spec, io IO) (running *Running, err error) {
	dir := o.bundle(id)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("creating the container's bundle: %w", err)
	}
	linux := *spec.Linux
	linux.ReadonlyPaths = slices.Concat(linux.ReadonlyPaths, cgroupRoots(spec, o.Cgroups.Unified()))
	own := *spec
	own.Linux = &linux
	data, err := json.Marshal(&own)
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: filepath.Join(dir, "config.json"), Data: data, Mode: 0o600, SkipSync: true})
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
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	cmd := o.command(ctx, append(args, id)...)
	io.applyTo(cmd)
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
	// Watch the process before the start, so that an early exit is noticed.
	h.Done()
	if running.Console, err = console.receive(); err != nil {
		return running, err
	}
	if err := io.beforeStart(); err != nil {
		return running, err
	}
	return running, o.call("start", id)
}

// applyTo sets the standard streams of cmd to io. Nil streams stay connected to /dev/null.
func (io IO) applyTo(cmd *exec.Cmd) {
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

// Exec starts another process in a running container. The returned handle refers to the command of the OCI runtime,
// which waits for that process and exits with its exit code. Signals are sent to the process itself.
func (o *OCI) Exec(id string, e ExecOptions) (*Running, error) {
	data, err := os.ReadFile(filepath.Join(o.bundle(id), "config.json"))
	if err != nil {
		return nil, fmt.Errorf("reading the container's bundle: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("parsing the container's bundle: %w", err)
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
	e.IO.applyTo(cmd)
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
		// The file is deleted with the directory. Killing the command would not kill the process
		// that it waits for.
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

// innerProcess waits until the OCI runtime has written the PID of an exec process to pidFile, and opens the
// process. done is closed when the command of the OCI runtime exits. If that happens first, or the process has
// exited already, innerProcess returns nil. After callTimeout it returns an error.
func innerProcess(pidFile string, done <-chan struct{}) (*process.Handle, error) {
	// The OCI runtime only writes a file, without notification.
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(callTimeout)
	for {
		if pid, err := readPID(pidFile); err == nil {
			h, err := process.Open(pid, 0)
			if errors.Is(err, process.ErrNotFound) {
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
		return 0, fmt.Errorf("reading process ID: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("invalid process ID %q", data)
	}
	return pid, nil
}

// Update changes the resource limits of a running container.
func (o *OCI) Update(id string, resources *runtimeapi.LinuxContainerResources) error {
	data, err := json.Marshal(Resources(resources, o.Cgroups.Unified()))
	if err != nil {
		return fmt.Errorf("updating the container's resources: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	cmd := o.command(ctx, "update", "--resources", "-", id)
	cmd.Stdin = bytes.NewReader(data)
	return o.finish(cmd, "update")
}

// Resume returns StartUnknown, because OCI does not know how far an interrupted Start has come. The caller then
// terminates the container.
func (o *OCI) Resume(string) (*process.Handle, StartState) { return nil, StartUnknown }

// KillAll kills every process in the cgroup of a container. It is not an error if the cgroup does not exist.
func (o *OCI) KillAll(cgroupPath string) error { return o.Cgroups.Kill(cgroupPath) }

// Delete removes the OCI runtime's state, the bundle and the cgroup of a container whose processes have exited. Missing
// parts are ignored. If the OCI runtime is not installed any more, Delete removes its state directory without it.
func (o *OCI) Delete(ctx context.Context, id, cgroupPath string) error {
	if _, err := os.Stat(o.bundle(id)); err == nil {
		err := o.call("delete", "--force", id)
		if _, statErr := os.Stat(o.Binary); errors.Is(statErr, os.ErrNotExist) {
			// If the OCI runtime is not installed any more, only its state can be removed.
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

// consoleSocket is a unix socket on which an OCI runtime sends the terminal of a process. A nil *consoleSocket stands
// for a process without a terminal: its methods do nothing and return nil.
type consoleSocket struct {
	dir      string
	listener *net.UnixListener
}

// newConsoleSocket creates a socket in a temporary directory, or returns nil if enabled is false. The caller must call
// Close.
func newConsoleSocket(enabled bool) (*consoleSocket, error) {
	if !enabled {
		return nil, nil
	}
	// The length of socket paths is limited.
	dir, err := os.MkdirTemp("", "oci-tty-")
	if err != nil {
		return nil, fmt.Errorf("creating socket for the terminal: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("creating socket for the terminal: %w", err)
	}
	return &consoleSocket{dir: dir, listener: l}, nil
}

// args returns the arguments of the OCI runtime that make it send the terminal to the socket.
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

// receive waits up to callTimeout for the terminal and returns it, or nil for a nil socket.
func (s *consoleSocket) receive() (*os.File, error) { return s.receiveUntil(nil) }

// receiveUntil is like receive, but also returns an error when done is closed, because the OCI runtime has exited and
// sends no terminal. done may be nil.
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
	_ = s.listener.SetDeadline(time.Now().Add(callTimeout))
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
