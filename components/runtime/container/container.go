//go:build cgo

package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	_ "github.com/opencontainers/cgroups/devices" // enables device rules in libcontainer
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/container/mountspace"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/process"
)

// Runner creates containers with libcontainer and controls their processes. Its methods are safe for concurrent use,
// except for concurrent calls for the same container.
type Runner struct {
	// State is the directory of libcontainer's state.
	State string
	// Cgroups of the machine.
	Cgroups *cgroup.Manager
	// Spaces creates the mount namespaces of containers. If nil, libcontainer creates them.
	Spaces *mountspace.Maker
	// Log receives the reasons why Spaces could not create a mount namespace. It may be nil.
	Log *slog.Logger

	prestartOnce sync.Once // guards the initialization of prestarts
	prestarts    *prestartPool

	// startMu is read-locked while a process is started.
	startMu sync.RWMutex
	filters filterCache
}

// IO contains the standard streams of a process. Nil streams are connected to /dev/null. With a
// terminal, they are not used.
type IO struct {
	Stdin, Stdout, Stderr *os.File
	// Before is called immediately before the container's program is executed. An error prevents
	// the execution. It may be nil.
	Before func() error
}

// beforeStart calls the function Before, if it is set, and returns its error. It is called when the container is
// set up, immediately before its program is executed.
func (io IO) beforeStart() error {
	if io.Before == nil {
		return nil
	}
	return io.Before()
}

// Running is a process that was started in a container: the container's first process or an exec command.
type Running struct {
	*process.Handle
	// Console is the terminal, if there is one. The caller closes it.
	Console *os.File
	// inner is set if Handle refers to a command of an external OCI runtime that waits for the process.
	// It is then the process itself, to which signals are sent.
	inner *process.Handle
}

// Signal sends a signal to the process, not to a command of the OCI runtime that waits for it.
func (r *Running) Signal(s unix.Signal) error {
	if r.inner != nil {
		return r.inner.Signal(s)
	}
	return r.Handle.Signal(s)
}

// Close releases the handles of the process. The process keeps running. The caller closes Console.
func (r *Running) Close() error {
	if r.inner != nil {
		return errors.Join(r.Handle.Close(), r.inner.Close())
	}
	return r.Handle.Close()
}

// Prepare creates the cgroups of a container with cgroup v1, so that Start is faster. With cgroup v2 it does nothing,
// because Start creates the only cgroup together with the mounts.
func (r *Runner) Prepare(cgroupPath string) error {
	if r.Cgroups.Unified() {
		return nil // with cgroup v2, the cgroup is created with the mounts
	}
	_, err := r.makeCgroups(cgroupPath, true)
	return err
}

// Start creates the container with this ID from spec and starts its first process with the streams io. It uses a
// pre-started process if one is ready and spec allows it. After an error, nothing of the container runs.
func (r *Runner) Start(id string, spec *specs.Spec, io IO) (*Running, error) {
	var one *prestarted
	if canUsePrestarted(spec) {
		r.prestartOnce.Do(func() { r.prestarts = newPrestartPool() })
		one = r.prestarts.take()
		r.prestarts.fill()
	}
	running, err := r.startWith(one, id, spec, io)
	if errors.Is(err, errPrestarted) {
		running, err = r.startWith(nil, id, spec, io)
	}
	return running, err
}

// errPrestarted means that the pre-started process has exited and could not be used. All changes have been undone, so
// Start tries again without a pre-started process.
var errPrestarted = errors.New("pre-started process exited")

// startWith implements Start. The pre-started process one becomes the container's first process; if one is nil, a new
// process is started. startWith closes or kills one in any case. If one could not be used, the error is errPrestarted.
func (r *Runner) startWith(one *prestarted, id string, spec *specs.Spec, io IO) (running *Running, err error) {
	defer func() {
		switch {
		case one == nil:
		case err == nil && running.PID() == one.pid:
			one.close()
		default:
			one.discard()
		}
	}()
	filter, err := r.filters.get(spec)
	if err != nil {
		return nil, err
	}
	if filter != nil {
		linux, own := *spec.Linux, *spec
		linux.Seccomp, own.Linux = nil, &linux
		spec = &own
	}
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{CgroupName: id, Spec: spec})
	if err != nil {
		return nil, fmt.Errorf("preparing the container: %w", err)
	}
	// libcontainer stores labels but nothing reads them, and the bundle label contains a host path.
	config.Labels = nil
	space, err := r.prepareMounts(spec, config, one != nil)
	if err != nil {
		return nil, err
	}
	if space != nil {
		defer space.File.Close()
	} else {
		config.ReadonlyPaths = append(config.ReadonlyPaths, cgroupRoots(spec, r.Cgroups.Unified())...)
	}
	c, err := libcontainer.Create(r.State, id, config)
	if err != nil {
		return nil, fmt.Errorf("creating the container: %w", err)
	}
	defer func() {
		if err != nil {
			_ = c.Destroy()
		}
	}()
	file, err := r.storeProcess(id, spec.Process, filter)
	if err != nil {
		return nil, err
	}
	defer file.Close() // may be nil
	first := newProcess(spec.Process, true, file)
	if one != nil {
		proc := ""
		if space != nil && space.Proc {
			proc = r.Spaces.Root()
		}
		if err := one.handOver(first, c, proc, file); err != nil {
			return nil, errors.Join(errPrestarted, err)
		}
	}
	running, err = r.start(first, spec.Process, io, func(p *libcontainer.Process) error {
		if err := c.Start(p); err != nil {
			return err
		}
		pid, err := p.Pid()
		if err == nil {
			err = io.beforeStart()
		}
		if err == nil && filter != nil {
			err = checkFilter(pid)
		}
		if err != nil {
			_ = p.Signal(unix.SIGKILL)
			_, _ = p.Wait()
			return err
		}
		return c.Exec()
	})
	if err != nil && one != nil {
		if pid, pidErr := first.Pid(); pidErr != nil || pid != one.pid {
			return nil, errors.Join(errPrestarted, err)
		}
	}
	return running, err
}

// Prestart starts a process in the background that the next container can use as its first process. The runtime calls
// it when a sandbox is created, because containers follow. It does nothing if such a process is ready.
func (r *Runner) Prestart() {
	r.prestartOnce.Do(func() { r.prestarts = newPrestartPool() })
	r.prestarts.fill()
}

// Close stops the pre-started process and releases the seccomp filters and mount namespaces that are kept for new
// containers. Containers keep running. No container may be started afterwards.
func (r *Runner) Close() error {
	r.prestartOnce.Do(func() { r.prestarts = newPrestartPool() })
	r.prestarts.close()
	r.filters.close()
	if r.Spaces == nil {
		return nil
	}
	return r.Spaces.Close()
}

// StartState is how far the start of a container has come that was interrupted because the runtime was killed.
type StartState int

// StartUnknown, StartPending and StartCompleted are the states of an interrupted start, which determine whether the
// start can be undone or the container continues.
const (
	// StartUnknown means that the state is unknown or the process has exited.
	StartUnknown StartState = iota
	// StartPending means that the container's program has not been executed.
	StartPending
	// StartCompleted means that the container's program is running.
	StartCompleted
)

// Resume determines how far the start of a container has come that was interrupted because the previous runtime process
// was killed. The returned handle is nil unless the state is StartCompleted. The caller closes it.
func (r *Runner) Resume(id string) (*process.Handle, StartState) {
	c, err := libcontainer.Load(r.State, id)
	if errors.Is(err, libcontainer.ErrNotExist) {
		return nil, StartPending
	}
	if err != nil {
		return nil, StartUnknown
	}
	state, err := c.State()
	if err != nil {
		return nil, StartUnknown
	}
	h, err := process.Open(state.InitProcessPid, state.InitProcessStartTime)
	if err != nil {
		if _, err := os.Stat(filepath.Join(r.State, id, startFIFO)); err == nil {
			return nil, StartPending // it waits on the start FIFO
		}
		return nil, StartUnknown
	}
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", state.InitProcessPid))
	if err != nil || isThisProgram(program) {
		h.Close()
		return nil, StartPending
	}
	return h, StartCompleted
}

// startFIFO is the FIFO on which libcontainer's init process waits before it executes the
// container's program.
const startFIFO = "exec.fifo"

// isThisProgram reports whether program, the target of a /proc/PID/exe link, is this program or a copy of it in memory.
// If so, the process is libcontainer's init process, which has not executed the container's program.
func isThisProgram(program string) bool {
	self, err := os.Readlink("/proc/self/exe")
	return err == nil && self == program || strings.HasPrefix(program, "/memfd:")
}

// newProcess converts the OCI process settings p to those of libcontainer. init is true for the first process of a
// container. filter is the file with the seccomp filter that the process loads, or nil.
func newProcess(p *specs.Process, init bool, filter *os.File) *libcontainer.Process {
	out := &libcontainer.Process{
		Args: p.Args, Env: p.Env, UID: int(p.User.UID), GID: int(p.User.GID), Cwd: p.Cwd,
		NoNewPrivileges: &p.NoNewPrivileges, AppArmorProfile: p.ApparmorProfile, Init: init, LogLevel: "3",
		// The field has another purpose in libcontainer, but package initial uses the file.
		PidfdSocket: filter,
	}
	for _, g := range p.User.AdditionalGids {
		out.AdditionalGroups = append(out.AdditionalGroups, int(g))
	}
	if c := p.Capabilities; c != nil {
		out.Capabilities = &configs.Capabilities{Bounding: c.Bounding, Effective: c.Effective,
			Inheritable: c.Inheritable, Permitted: c.Permitted, Ambient: c.Ambient}
	}
	return out
}

// start starts p by calling run, and connects it to a new terminal if how requests one, or else to the streams
// io. It returns the process with the terminal. If the terminal cannot be received, it kills the process and
// returns an error.
func (r *Runner) start(p *libcontainer.Process, how *specs.Process, io IO, run func(*libcontainer.Process) error) (*Running, error) {
	var consoles *socketPair
	if how.Terminal {
		var err error
		consoles, err = newSocketPair()
		if err != nil {
			return nil, err
		}
		defer consoles.Close()
		p.ConsoleSocket = consoles.child
		if how.ConsoleSize != nil {
			p.ConsoleWidth, p.ConsoleHeight = uint16(how.ConsoleSize.Width), uint16(how.ConsoleSize.Height)
		}
	} else {
		// A typed nil in an interface would not be nil for libcontainer.
		if io.Stdin != nil {
			p.Stdin = io.Stdin
		}
		if io.Stdout != nil {
			p.Stdout = io.Stdout
		}
		if io.Stderr != nil {
			p.Stderr = io.Stderr
		}
	}
	r.startMu.RLock()
	err := run(p)
	r.startMu.RUnlock()
	if err != nil {
		// If other starts are in progress, a later failure reaps them.
		if r.startMu.TryLock() {
			reapLaunchers()
			r.startMu.Unlock()
		}
		return nil, fmt.Errorf("failed to start the container's process: %w", err)
	}
	pid, err := p.Pid()
	if err != nil {
		return nil, fmt.Errorf("getting the container's process ID: %w", err)
	}
	h, err := process.Open(pid, 0)
	if err != nil {
		return nil, err
	}
	running := &Running{Handle: h}
	if consoles != nil {
		running.Console, err = consoles.receive()
		if err != nil {
			_ = h.Signal(unix.SIGKILL)
			<-h.Done()
			return nil, err
		}
	}
	return running, nil
}

// ExecOptions are the parameters of Exec.
type ExecOptions struct {
	Args     []string
	Terminal bool
	IO       IO
}

// Exec starts another process in the running container with this ID. The process has the user, environment and
// security settings of the container's first process. With a terminal, TERM is set to xterm unless the
// environment has it.
func (r *Runner) Exec(id string, o ExecOptions) (*Running, error) {
	how, filter, err := r.loadProcess(id)
	if err != nil {
		return nil, err
	}
	defer filter.Close() // may be nil
	how.Args, how.Terminal = o.Args, o.Terminal
	if o.Terminal && !hasVariable(how.Env, "TERM") {
		how.Env = append(how.Env, "TERM=xterm")
	}
	c, err := libcontainer.Load(r.State, id)
	if err != nil {
		return nil, fmt.Errorf("loading the container: %w", err)
	}
	return r.start(newProcess(how, false, filter), how, o.IO, c.Run)
}

// hasVariable reports whether env, a list of NAME=value, contains a variable.
func hasVariable(env []string, name string) bool {
	for _, v := range env {
		if len(v) > len(name) && v[:len(name)] == name && v[len(name)] == '=' {
			return true
		}
	}
	return false
}

// Update changes the resource limits of the running container with this ID. Zero values in resources leave a
// limit unchanged. A new memory limit also replaces the swap limit.
func (r *Runner) Update(id string, resources *runtimeapi.LinuxContainerResources) error {
	c, err := libcontainer.Load(r.State, id)
	if err != nil {
		return fmt.Errorf("loading the container: %w", err)
	}
	config := c.Config()
	cg := *config.Cgroups
	limits := *cg.Resources
	next := Resources(resources, r.Cgroups.Unified())
	if v := next.CPU.Shares; v != nil {
		limits.CpuShares, limits.CpuWeight = *v, cgroup.CPUWeight(*v)
	}
	if v := next.CPU.Quota; v != nil {
		limits.CpuQuota = *v
	}
	if v := next.CPU.Period; v != nil {
		limits.CpuPeriod = *v
	}
	if next.CPU.Cpus != "" {
		limits.CpusetCpus = next.CPU.Cpus
	}
	if next.CPU.Mems != "" {
		limits.CpusetMems = next.CPU.Mems
	}
	if v := next.Memory.Limit; v != nil {
		limits.Memory = *v
		limits.MemorySwap = 0
		if next.Memory.Swap != nil {
			limits.MemorySwap = *next.Memory.Swap
		}
	}
	for key, value := range next.Unified {
		if limits.Unified == nil {
			limits.Unified = map[string]string{}
		}
		limits.Unified[key] = value
	}
	cg.Resources = &limits
	config.Cgroups = &cg
	if err := c.Set(config); err != nil {
		return fmt.Errorf("updating the container's resources: %w", err)
	}
	return nil
}

// KillAll kills every process in the cgroup of a container. It is not an error if the cgroup does not exist.
func (r *Runner) KillAll(cgroupPath string) error { return r.Cgroups.Kill(cgroupPath) }

// Delete removes the cgroup and libcontainer's state of a container whose processes have exited. Missing parts are
// ignored. It waits up to 10 s for the cgroup to become empty.
func (r *Runner) Delete(ctx context.Context, id, cgroupPath string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := r.Cgroups.Remove(ctx, cgroupPath)
	return errors.Join(err, os.RemoveAll(filepath.Join(r.State, id)))
}
