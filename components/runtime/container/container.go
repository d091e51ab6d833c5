//go:build cgo

package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	_ "github.com/opencontainers/cgroups/devices" // lets libcontainer set device rules
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/container/mountspace"
	"hyperkube/internal/atomicfile"
	"hyperkube/internal/cgroup"
	"hyperkube/internal/process"
)

// Runner starts containers. Its methods are safe for several goroutines, but
// for several calls about one container.
type Runner struct {
	// State is the folder for what the low level remembers.
	State string
	// Cgroups of the machine.
	Cgroups *cgroup.Manager
	// Spaces makes containers' mount namespaces; nil leaves that to libcontainer.
	Spaces *mountspace.Maker
	// Log is told what keeps Spaces from making one; nil for nobody.
	Log *slog.Logger

	spareOnce sync.Once // guards that spares is set
	spares    *spares

	// starts is held for reading while a process is started.
	starts sync.RWMutex
}

// processFile keeps how a container's processes are started, for exec.
const processFile = "process.json"

// IO are the files that a process is started with. Nil ones read as empty and
// take everything. With a terminal none is used.
type IO struct {
	Stdin, Stdout, Stderr *os.File
	// Before is called when nothing is left to do but to execute the container's
	// program, which an error prevents; nil for nothing.
	Before func() error
}

func (io IO) beforeStart() error {
	if io.Before == nil {
		return nil
	}
	return io.Before()
}

// Running is a process that was started in a container.
type Running struct {
	*process.Handle
	// Console is the terminal, if there is one; its taker closes it.
	Console *os.File
	// inner is the process itself if Handle is of who waits for it; nil else.
	inner *process.Handle
}

// Signal sends a signal to the process.
func (r *Running) Signal(s unix.Signal) error {
	if r.inner != nil {
		return r.inner.Signal(s)
	}
	return r.Handle.Signal(s)
}

// Close lets go of the process.
func (r *Running) Close() error {
	if r.inner != nil {
		return errors.Join(r.Handle.Close(), r.inner.Close())
	}
	return r.Handle.Close()
}

// Prepare makes the cgroups of a container that is to be started.
func (r *Runner) Prepare(cgroupPath string) error {
	if r.Cgroups.Unified() {
		return nil // the only one is made with the mounts
	}
	_, err := r.makeCgroups(cgroupPath, true)
	return err
}

// Start makes the container and starts its first process.
func (r *Runner) Start(id string, spec *specs.Spec, io IO) (*Running, error) {
	var one *spare
	if canUseSpare(spec) {
		r.spareOnce.Do(func() { r.spares = newSpares() })
		one = r.spares.take()
		r.spares.fill()
	}
	running, err := r.startWith(one, id, spec, io)
	if errors.Is(err, errSpare) {
		running, err = r.startWith(nil, id, spec, io)
	}
	return running, err
}

// errSpare tells that a spare process could not be used, and nothing is left of
// what was done.
var errSpare = errors.New("a spare process ended")

// startWith starts a container whose first process one becomes; nil for a new
// process. One is let go of or ended.
func (r *Runner) startWith(one *spare, id string, spec *specs.Spec, io IO) (running *Running, err error) {
	defer func() {
		switch {
		case one == nil:
		case err == nil && running.PID() == one.pid:
			one.close()
		default:
			one.discard()
		}
	}()
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{CgroupName: id, Spec: spec})
	if err != nil {
		return nil, fmt.Errorf("preparing the container: %w", err)
	}
	// Nobody reads them, and one leads to the host.
	config.Labels = nil
	space, err := r.mountAhead(spec, config, one != nil)
	if err != nil {
		return nil, err
	}
	if space != nil {
		defer space.File.Close()
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
	// Before it runs: a successor may have to go on from there.
	data, err := json.Marshal(spec.Process)
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: filepath.Join(r.State, id, processFile), Data: data, Mode: 0o600, Remakeable: true})
	}
	if err != nil {
		return nil, fmt.Errorf("recording the container's process: %w", err)
	}
	first := newProcess(spec.Process, true)
	if one != nil {
		proc := ""
		if space != nil && space.Proc {
			proc = r.Spaces.Root()
		}
		if err := one.offer(first, c, proc); err != nil {
			return nil, errors.Join(errSpare, err)
		}
	}
	running, err = r.start(first, spec.Process, io, func(p *libcontainer.Process) error {
		if err := c.Start(p); err != nil {
			return err
		}
		if err := io.beforeStart(); err != nil {
			_ = p.Signal(unix.SIGKILL)
			_, _ = p.Wait()
			return err
		}
		return c.Exec()
	})
	if err != nil && one != nil {
		if pid, pidErr := first.Pid(); pidErr != nil || pid != one.pid {
			return nil, errors.Join(errSpare, err)
		}
	}
	return running, err
}

// Expect prepares for a container that will be started soon.
func (r *Runner) Expect() {
	r.spareOnce.Do(func() { r.spares = newSpares() })
	r.spares.fill()
}

// Close ends what was prepared. Nothing may be started any more.
func (r *Runner) Close() error {
	r.spareOnce.Do(func() { r.spares = newSpares() })
	r.spares.close()
	if r.Spaces == nil {
		return nil
	}
	return r.Spaces.Close()
}

// Progress is how far a start has come that was cut short.
type Progress int

// The ways that a start which was cut short can have taken.
const (
	// Lost: nobody can tell, or it has ended already.
	Lost Progress = iota
	// Before: the container's own program has not been executed.
	Before
	// After: the container's own program runs.
	After
)

// Resume tells what has become of a Start that this process's predecessor was
// killed in. The handle is nil but for After.
func (r *Runner) Resume(id string) (*process.Handle, Progress) {
	c, err := libcontainer.Load(r.State, id)
	if errors.Is(err, libcontainer.ErrNotExist) {
		return nil, Before
	}
	if err != nil {
		return nil, Lost
	}
	state, err := c.State()
	if err != nil {
		return nil, Lost
	}
	h, err := process.Open(state.InitProcessPid, state.InitProcessStartTime)
	if err != nil {
		if _, err := os.Stat(filepath.Join(r.State, id, startFIFO)); err == nil {
			return nil, Before // it waited at the gate
		}
		return nil, Lost
	}
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", state.InitProcessPid))
	if err != nil || isOurs(program) {
		h.Close()
		return nil, Before
	}
	return h, After
}

// startFIFO is where libcontainer's first process waits until it may execute
// the container's program.
const startFIFO = "exec.fifo"

// isOurs tells whether the link of a process's program leads to this one, or to
// one like it that was its predecessor.
func isOurs(program string) bool {
	own, err := os.Readlink("/proc/self/exe")
	return err == nil && own == program || strings.HasPrefix(program, "/memfd:")
}

func newProcess(p *specs.Process, init bool) *libcontainer.Process {
	out := &libcontainer.Process{
		Args: p.Args, Env: p.Env, UID: int(p.User.UID), GID: int(p.User.GID), Cwd: p.Cwd,
		NoNewPrivileges: &p.NoNewPrivileges, AppArmorProfile: p.ApparmorProfile, Init: init, LogLevel: "3",
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

// start starts p by run, with io or a terminal.
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
		// A typed nil would be no nil to the library.
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
	r.starts.RLock()
	err := run(p)
	r.starts.RUnlock()
	if err != nil {
		// While others start, the next that fails does it.
		if r.starts.TryLock() {
			reapLaunchers()
			r.starts.Unlock()
		}
		return nil, fmt.Errorf("failed to start the container's process: %w", err)
	}
	pid, err := p.Pid()
	if err != nil {
		return nil, fmt.Errorf("finding the container's process: %w", err)
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

// ExecOptions say what to run in a running container.
type ExecOptions struct {
	Args     []string
	Terminal bool
	IO       IO
}

// Exec starts another process in a running container, as its first one was
// started.
func (r *Runner) Exec(id string, o ExecOptions) (*Running, error) {
	data, err := os.ReadFile(filepath.Join(r.State, id, processFile))
	if err != nil {
		return nil, fmt.Errorf("reading the container's process: %w", err)
	}
	var how specs.Process
	if err := json.Unmarshal(data, &how); err != nil {
		return nil, fmt.Errorf("reading the container's process: %w", err)
	}
	how.Args, how.Terminal = o.Args, o.Terminal
	if o.Terminal && !hasVariable(how.Env, "TERM") {
		how.Env = append(how.Env, "TERM=xterm")
	}
	c, err := libcontainer.Load(r.State, id)
	if err != nil {
		return nil, fmt.Errorf("loading the container: %w", err)
	}
	return r.start(newProcess(&how, false), &how, o.IO, c.Run)
}

func hasVariable(env []string, name string) bool {
	for _, v := range env {
		if len(v) > len(name) && v[:len(name)] == name && v[len(name)] == '=' {
			return true
		}
	}
	return false
}

// Update changes the limits of a running container.
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

// KillAll kills every process of the container.
func (r *Runner) KillAll(cgroupPath string) error { return r.Cgroups.Kill(cgroupPath) }

// Delete removes all that Start has made of a container whose processes have
// ended or were killed. What is not there is no error.
func (r *Runner) Delete(ctx context.Context, id, cgroupPath string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := r.Cgroups.Remove(ctx, cgroupPath)
	return errors.Join(err, os.RemoveAll(filepath.Join(r.State, id)))
}
