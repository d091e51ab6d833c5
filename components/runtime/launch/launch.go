// Package launch starts the container runtime, a program of its own that this
// one carries compressed. It is executed from memory, sealed so that nobody
// can change it: libcontainer then need not copy it for every container.
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

	"hyperkube/internal/cgroup"
	"hyperkube/internal/layout"
	"hyperkube/internal/version"
)

//go:embed program
var program embed.FS

// name is what the runtime is called by, argv[0].
const name = layout.RuntimeName

// versionEnv tells the program which version it is of.
const versionEnv = "HYPERKUBE_RUNTIME_VERSION"

// readyEnv names the descriptor on which the program tells how its start went.
const readyEnv = "HYPERKUBE_RUNTIME_READY_FD"

// packedFile is the compressed program, see scripts/build-runtime.
const packedFile = "program/runtime.zst"

// ErrNotBuilt tells that this program carries no runtime.
var ErrNotBuilt = errors.New("this build has no container runtime: build with make")

// unpack puts the program into a sealed file in memory.
func unpack() (*os.File, error) {
	packed, err := program.Open(packedFile)
	if err != nil {
		return nil, ErrNotBuilt
	}
	defer func() { _ = packed.Close() }()
	// Kernels before 6.3 do not know the flag, and need none.
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("making a file in memory for the container runtime: %w", err)
	}
	// A low number could be taken for another file of the new process.
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

// Build tells the program that this one carries from others: by its size and by
// the checksum of its content that ends its compressed form. It is empty when
// there is none.
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

// Exec replaces this process by the runtime, with args after its name. It
// returns only on an error.
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

// Options say how to start a runtime that stays.
type Options struct {
	// Args of the runtime's program.
	Args []string
	// Main is the path of the main program, which is the root of the built-in image:
	// another build of it makes the runtime outdated, too, though it carries the same
	// one. Empty for none.
	Main string
	// LogFile is what it writes to; it and its folder are made.
	LogFile string
	// PIDFile holds its number, and a lock, while it runs; empty for none.
	// Its folder is made.
	PIDFile string
}

// argv is what the runtime is executed with.
func (o Options) argv() []string {
	argv := []string{name}
	if o.PIDFile != "" {
		argv = append(argv, "--pid-file", o.PIDFile)
	}
	argv = append(argv, "--build", o.build())
	return append(argv, o.Args...)
}

// build tells the programs that argv is of from others.
func (o Options) build() string {
	id := Build()
	if o.Main != "" {
		id += "-" + programID(o.Main)
	}
	return id
}

// Outdated tells whether the process is a runtime that Start has started with
// the same PID file, but another program or other options: it is to make way.
// Whoever was started by others stays.
func (o Options) Outdated(pid int) (bool, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false, fmt.Errorf("looking at the container runtime: %w", err)
	}
	return o.outdated(strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")), nil
}

func (o Options) outdated(argv []string) bool {
	want := o.argv()
	ours := o.PIDFile != "" && len(argv) > 3 && slices.Equal(argv[:3], want[:3])
	return ours && !slices.Equal(argv, want)
}

// Successor is what a runtime that serves executes to make place for the one
// that main, the path of the main program, carries.
func (o Options) Successor(main string) []string {
	return append([]string{main, "runtime"}, o.argv()[1:]...)
}

// Start starts a runtime that outlives this process: in a session of its own,
// in the root of every cgroup hierarchy. It returns the process's number once
// CRI is served. When ctx ends before that, the runtime is stopped.
func Start(ctx context.Context, o Options) (pid int, err error) {
	f, err := unpack()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if o.PIDFile != "" {
		if err := os.MkdirAll(filepath.Dir(o.PIDFile), 0o755); err != nil {
			return 0, fmt.Errorf("making the directory of the PID file: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(o.LogFile), 0o755); err != nil {
		return 0, fmt.Errorf("making the log directory: %w", err)
	}
	log, err := os.OpenFile(o.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, fmt.Errorf("opening the runtime's log: %w", err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("making a pipe: %w", err)
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
	groups, err := cgroup.Open()
	if err == nil {
		err = groups.Enter("/", cmd.Process.Pid)
	}
	if err != nil {
		return give(fmt.Errorf("moving the container runtime out of our cgroups: %w", err))
	}
	told := make(chan string, 1)
	go func() {
		word, _ := io.ReadAll(r)
		told <- string(word)
	}()
	select {
	case word := <-told:
		if word == "ready" {
			pid := cmd.Process.Pid
			return pid, cmd.Process.Release()
		}
		err := cmd.Wait()
		if text, ok := strings.CutPrefix(word, "error: "); ok {
			return 0, fmt.Errorf("the container runtime did not start: %s", text)
		}
		return 0, fmt.Errorf("the container runtime ended at its start (%w): see %s", err, o.LogFile)
	case <-ctx.Done():
		return give(fmt.Errorf("starting the container runtime: %w", context.Cause(ctx)))
	}
}
