// Package launch starts the container runtime. It is a separate program, embedded in this one in
// compressed form. It is executed from a sealed memfd, which no process can modify, so libcontainer
// does not have to copy it for every container.
package launch

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"hyperkube/internal/base/version"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/layout"
)

//go:embed program
var program embed.FS

// name is the runtime's argv[0].
const name = layout.RuntimeName

// versionEnv is the environment variable in which Exec passes the version of the main program to the runtime.
const versionEnv = "HYPERKUBE_RUNTIME_VERSION"

// readyEnv is the environment variable with the file descriptor on which the runtime reports that
// it is ready or has failed.
const readyEnv = "HYPERKUBE_RUNTIME_READY_FD"

// packedFile is the compressed runtime program in the embedded file system. scripts/build-runtime creates it.
const packedFile = "program/runtime.zst"

// ErrNotBuilt is returned by Exec and Start if the main program was built without the embedded runtime, for example
// with `go build`.
var ErrNotBuilt = errors.New("this build has no container runtime: build with make")

// unpack decompresses the embedded runtime to a sealed memfd, from which it can be executed. It returns ErrNotBuilt if
// there is none. The caller closes the file.
func unpack() (*os.File, error) {
	packed, err := program.Open(packedFile)
	if err != nil {
		return nil, ErrNotBuilt
	}
	defer func() { _ = packed.Close() }()
	// Kernels before 6.3 do not support MFD_EXEC, and do not need it.
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("creating memfd for the container runtime: %w", err)
	}
	// A low file descriptor could collide with a descriptor for the new process.
	if high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 64); err == nil {
		unix.Close(fd)
		fd = high
	}
	f := os.NewFile(uintptr(fd), name)
	z, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1))
	if err == nil {
		_, err = io.Copy(f, z)
		z.Close()
	}
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("unpacking the container runtime: %w", err)
	}
	return f, nil
}

// Build returns an identifier of the embedded runtime, by which an outdated running runtime is detected: its size and
// the checksum at the end of the compressed data. It is empty if there is no embedded runtime.
func Build() string {
	packed, err := program.Open(packedFile)
	if err != nil {
		return ""
	}
	defer func() { _ = packed.Close() }()
	info, err := packed.Stat()
	if err != nil || info.Size() < 4 {
		return ""
	}
	sum := make([]byte, 4)
	at, ok := packed.(io.ReaderAt)
	if !ok {
		return ""
	}
	if _, err := at.ReadAt(sum, info.Size()-4); err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return fmt.Sprintf("%d-%x", info.Size(), sum)
}

// Exec executes the embedded runtime with these arguments in this process. It returns only after an error.
func Exec(args []string) error {
	f, err := unpack()
	if err != nil {
		return err
	}
	defer f.Close()
	path := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	env := append(os.Environ(), versionEnv+"="+version.Tag())
	if err := syscall.Exec(path, append([]string{name}, args...), env); err != nil {
		return fmt.Errorf("executing the container runtime: %w", err)
	}
	return nil
}

// Options are the settings of a runtime that Start starts in the background.
type Options struct {
	// Args are the arguments of the runtime.
	Args []string
	// Main is the path of the main program, which is in the root of the built-in image. Another
	// build of it makes the runtime outdated too, even if the embedded runtime is the same. Empty
	// disables this check.
	Main string
	// LogFile is the runtime's log. The file and its directory are created, and the runtime rotates it.
	LogFile string
	// PIDFile contains the process ID and is locked while the runtime runs. Its directory is
	// created. Empty means no PID file.
	PIDFile string
	// Cgroup is the cgroup of the runtime in every hierarchy. It is created if needed. Empty means the root.
	Cgroup string
}

// argv returns the command line of the runtime. It includes the build identifier, by which Outdated detects a
// runtime of another version.
func (o Options) argv() []string {
	argv := []string{name}
	if o.PIDFile != "" {
		argv = append(argv, "--pid-file", o.PIDFile)
	}
	argv = append(argv, "--build", o.build())
	if o.LogFile != "" {
		argv = append(argv, "--log-file", o.LogFile)
	}
	return append(argv, o.Args...)
}

// build returns an identifier of the embedded runtime and of the main program, if Main is set.
func (o Options) build() string {
	id := Build()
	if o.Main != "" {
		id += "-" + programID(o.Main)
	}
	return id
}

// Outdated reports whether the process pid should be replaced: it is a runtime that Start has started with the same PID
// file, but with another build of the program or other arguments. It returns false for processes that were started in
// another way, and an error if the process does not exist.
func (o Options) Outdated(pid int) (bool, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false, fmt.Errorf("reading command line of the container runtime: %w", err)
	}
	return o.outdated(strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")), nil
}

// outdated implements Outdated for a process with the command line argv.
func (o Options) outdated(argv []string) bool {
	want := o.argv()
	ours := o.PIDFile != "" && len(argv) > 3 && slices.Equal(argv[:3], want[:3])
	return ours && !slices.Equal(argv, want)
}

// Successor returns the command line for an upgrade of a running runtime, see runtimeclient.Client.Upgrade. main is the
// path of the main program, which executes its embedded runtime with these options.
func (o Options) Successor(main string) []string {
	return append([]string{main, "runtime"}, o.argv()[1:]...)
}

// Enter moves the runtime with the process ID pid into the cgroup name, which is Options.Cgroup, in every hierarchy. It creates
// the cgroup if needed.
func Enter(name string, pid int) error {
	groups, err := cgroup.Open()
	if err == nil && name != "" {
		err = groups.Create(name, cgroup.Resources{})
	}
	if err == nil {
		err = groups.AddProcess("/"+name, pid)
	}
	if err != nil {
		return fmt.Errorf("moving the container runtime to its cgroup: %w", err)
	}
	return nil
}

// Start starts the embedded runtime in the background. The runtime outlives this process: it runs in its own session
// and in the cgroup of o. Start returns the process ID when the runtime serves CRI. If the startup
// fails, the error contains the reason. If ctx is done before, Start kills the runtime.
func Start(ctx context.Context, o Options) (pid int, err error) {
	f, err := unpack()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if o.PIDFile != "" {
		if err := os.MkdirAll(filepath.Dir(o.PIDFile), 0o755); err != nil {
			return 0, fmt.Errorf("creating directory of the PID file: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(o.LogFile), 0o755); err != nil {
		return 0, fmt.Errorf("creating log directory: %w", err)
	}
	log, err := os.OpenFile(o.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, fmt.Errorf("opening the runtime's log: %w", err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("creating pipe: %w", err)
	}
	defer r.Close()
	cmd := &exec.Cmd{
		Path: fmt.Sprintf("/proc/self/fd/%d", f.Fd()), Args: o.argv(), Dir: "/",
		Stdout: log, Stderr: log, ExtraFiles: []*os.File{w},
		Env:         append(os.Environ(), readyEnv+"=3"),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return 0, fmt.Errorf("starting the container runtime: %w", err)
	}
	give := func(err error) (int, error) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return 0, err
	}
	if err := Enter(o.Cgroup, cmd.Process.Pid); err != nil {
		return give(err)
	}
	result := make(chan string, 1)
	go func() {
		word, _ := io.ReadAll(r)
		result <- string(word)
	}()
	select {
	case word := <-result:
		if word == "ready" {
			pid := cmd.Process.Pid
			return pid, cmd.Process.Release()
		}
		err := cmd.Wait()
		if text, ok := strings.CutPrefix(word, "error: "); ok {
			return 0, fmt.Errorf("starting the container runtime: %s", text)
		}
		return 0, fmt.Errorf("the container runtime exited during startup (%w): see %s", err, o.LogFile)
	case <-ctx.Done():
		return give(fmt.Errorf("starting the container runtime: %w", context.Cause(ctx)))
	}
}
