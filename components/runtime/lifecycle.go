//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/container"
	"hyperkube/components/runtime/logs"
	"hyperkube/components/runtime/sandbox"
	"hyperkube/internal/process"
)

// liveContainer is what belongs to a container while it runs.
type liveContainer struct {
	handle *process.Handle
	holder *process.Handle // nil without terminal and stdin
	log    *logs.Log

	// stdout and stderr are read until they end; with a terminal stdout is
	// its output.
	stdout, stderr *os.File
	out, err       logs.Hub
	copies         sync.WaitGroup
	// drained is closed when both streams have ended.
	drained chan struct{}

	// console is the terminal, stdin the pipe without one; nil if there is
	// none.
	console *os.File
	inMu    sync.Mutex // guards what follows
	stdin   *os.File
	inputs  map[*os.File]bool // of those who are attached, see input

	// exited is closed when the end is recorded.
	exited chan struct{}
}

// letGo closes all files of a container that lives on without this process.
func (c *containerState) letGo() {
	live := c.running()
	if live == nil {
		return
	}
	live.handle.Close()
	for _, f := range []*os.File{live.stdout, live.stderr, live.console} {
		if f != nil {
			f.Close()
		}
	}
	live.closeStdin()
	if live.holder != nil {
		live.holder.Close()
	}
}

// closeStdin ends a container's input, also for those who are attached.
func (l *liveContainer) closeStdin() {
	l.inMu.Lock()
	defer l.inMu.Unlock()
	if l.stdin != nil {
		l.stdin.Close()
		l.stdin = nil
	}
	for own := range l.inputs {
		own.Close()
	}
	l.inputs = nil
}

// input is a way into the container for one who is attached, nil if it takes no input:
// when that is closed, a write ends that waits for the container to read. It must be
// given to leave.
func (l *liveContainer) input() (*os.File, error) {
	l.inMu.Lock()
	defer l.inMu.Unlock()
	file := l.console
	if file == nil {
		file = l.stdin
	}
	if file == nil {
		return nil, nil
	}
	own, err := duplicate(file)
	if err != nil {
		return nil, fmt.Errorf("opening a container's input: %w", err)
	}
	if l.inputs == nil {
		l.inputs = map[*os.File]bool{}
	}
	l.inputs[own] = true
	return own, nil
}

// leave closes what input returned.
func (l *liveContainer) leave(own *os.File) {
	if own == nil {
		return
	}
	l.inMu.Lock()
	defer l.inMu.Unlock()
	delete(l.inputs, own)
	own.Close()
}

// duplicate opens another descriptor of a file.
func duplicate(f *os.File) (*os.File, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var failed error
	if err := conn.Control(func(of uintptr) { fd, failed = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, failed
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// endHolder ends a holder process, which closes what it held.
func endHolder(h *process.Handle) {
	if err := h.Signal(unix.SIGKILL); err == nil {
		<-h.Done()
	}
	h.Close()
}

func (r *Runtime) fifo(id, name string) string { return r.state("containers", id, name) }

// StartContainer starts a container that was created.
func (r *Runtime) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	c, err := r.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	c.life.Lock()
	defer c.life.Unlock()
	if p := c.get().Phase; p != phaseCreated {
		return nil, fmt.Errorf("container is in %s state", containerPhase(p))
	}
	s, err := r.findSandbox(c.sandbox)
	if err != nil {
		return nil, fmt.Errorf("sandbox %q not found: %w", c.sandbox, err)
	}
	if !s.takesContainers() {
		return nil, fmt.Errorf("sandbox container %q is not running", c.sandbox)
	}
	if err := r.startContainer(c, s.get()); err != nil {
		now := time.Now().UnixNano()
		r.endContainer(c, func(rec *containerRecord) {
			rec.Phase, rec.Finished, rec.ExitCode = phaseExited, now, 128
			rec.Reason, rec.Message = "StartError", err.Error()
		})
		return nil, fmt.Errorf("failed to start container %q: %w", c.id, err)
	}
	r.emit(c.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, s)
	return &runtimeapi.StartContainerResponse{}, nil
}

func (r *Runtime) startContainer(c *containerState, pod sandboxRecord) (err error) {
	c.mu.Lock()
	spec := c.spec
	c.spec = nil
	c.mu.Unlock()
	rec := c.get()
	config := rec.config
	if spec == nil {
		image, err := r.images.Get(rec.ImageID)
		if err != nil {
			return err
		}
		mounts, err := r.resolveMounts(c, pod, image.Config, true)
		if err != nil {
			return err
		}
		if spec, err = r.buildSpec(c, pod, image.Config, mounts); err != nil {
			return err
		}
	}
	if err := r.changeContainer(c, func(rec *containerRecord) { rec.Phase = phaseStarting }); err != nil {
		return err
	}
	live := &liveContainer{exited: make(chan struct{}), drained: make(chan struct{})}
	// Awaited before the container's program is executed.
	opened := make(chan error, 1)
	go func() {
		var err error
		live.log, err = logs.Open(rec.LogPath, r.log)
		opened <- err
	}()
	logOpen := sync.OnceValue(func() error { return <-opened })
	child := container.IO{Before: logOpen}
	defer func() {
		for _, f := range []*os.File{child.Stdin, child.Stdout, child.Stderr} {
			if f != nil {
				f.Close()
			}
		}
		if err != nil {
			if logOpen() == nil {
				live.log.Close()
			}
			for _, f := range []*os.File{live.stdout, live.stderr, live.console} {
				if f != nil {
					f.Close()
				}
			}
			live.closeStdin()
			if live.holder != nil {
				endHolder(live.holder)
			}
		}
	}()
	if !config.GetTty() {
		if live.stdout, child.Stdout, err = r.outputFIFO(c.id, "stdout"); err != nil {
			return err
		}
		if live.stderr, child.Stderr, err = r.outputFIFO(c.id, "stderr"); err != nil {
			return err
		}
		if config.GetStdin() {
			if child.Stdin, live.stdin, err = r.inputFIFO(c.id); err != nil {
				return err
			}
		}
	}
	running, err := r.engineOf(rec).Start(c.id, spec, child)
	if err != nil {
		return err
	}
	live.handle, live.console = running.Handle, running.Console
	now := time.Now().UnixNano()
	err = r.hold(c, pod, live)
	if err == nil {
		err = r.changeContainer(c, func(rec *containerRecord) {
			rec.Phase, rec.Started, rec.Boot = phaseRunning, now, r.boot
			rec.Process = processID{running.PID(), running.Start()}
			if live.holder != nil {
				rec.Holder = processID{live.holder.PID(), live.holder.Start()}
			}
		})
	}
	if err != nil {
		// Nobody would know of it.
		_ = r.engineOf(rec).KillAll(rec.Cgroup)
		_ = live.handle.Signal(unix.SIGKILL)
		<-live.handle.Done()
		return err
	}
	r.follow(c, live)
	return nil
}

// hold starts a process that keeps terminal or stdin open beyond ours.
func (r *Runtime) hold(c *containerState, pod sandboxRecord, live *liveContainer) error {
	file := live.console
	if file == nil {
		file = live.stdin
	}
	if file == nil {
		return nil
	}
	// Passing it on makes it blocking for everybody, so we take it back.
	h, err := sandbox.Hold(r.pauseProgram(), pod.ID, file)
	if err != nil {
		return err
	}
	live.holder = h
	if err := r.cgroups.Enter(r.sandboxCgroup(pod.config, pod.ID), h.PID()); err != nil {
		return err
	}
	mine, err := sandbox.Held(h)
	if err != nil {
		return err
	}
	file.Close()
	if live.console != nil {
		live.console = mine
	} else {
		live.stdin = mine
	}
	return nil
}

// outputFIFO makes a FIFO and opens both ends: ours, and the container's,
// which reads too so that it never has nobody to write to.
func (r *Runtime) outputFIFO(id, name string) (ours, theirs *os.File, err error) {
	path := r.fifo(id, name)
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, nil, fmt.Errorf("making the container's %s: %w", name, err)
	}
	if ours, err = openReader(path); err != nil {
		return nil, nil, fmt.Errorf("opening the container's %s: %w", name, err)
	}
	if theirs, err = openBlocking(path, unix.O_RDWR); err != nil {
		ours.Close()
		return nil, nil, fmt.Errorf("opening the container's %s: %w", name, err)
	}
	return ours, theirs, nil
}

// inputFIFO makes a FIFO for stdin and opens both ends.
func (r *Runtime) inputFIFO(id string) (theirs, ours *os.File, err error) {
	path := r.fifo(id, "stdin")
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, nil, fmt.Errorf("making the container's stdin: %w", err)
	}
	// Opening one end alone would block.
	both, err := openBlocking(path, unix.O_RDWR)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the container's stdin: %w", err)
	}
	defer both.Close()
	if theirs, err = openBlocking(path, unix.O_RDONLY); err != nil {
		return nil, nil, fmt.Errorf("opening the container's stdin: %w", err)
	}
	if ours, err = openBlocking(path, unix.O_WRONLY); err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("opening the container's stdin: %w", err)
	}
	return theirs, ours, nil
}

func openReader(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func openBlocking(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// follow begins to carry a running container's output and waits for its end.
func (r *Runtime) follow(c *containerState, live *liveContainer) {
	c.mu.Lock()
	c.live = live
	c.mu.Unlock()
	carry := func(f *os.File, stream logs.Stream, hub *logs.Hub) {
		if f == nil {
			return
		}
		live.copies.Add(1)
		r.watch.Go(func() {
			defer live.copies.Done()
			logs.Copy(f, stream, live.log, hub)
		})
	}
	if live.console != nil {
		carry(live.console, logs.Stdout, &live.out)
	} else {
		carry(live.stdout, logs.Stdout, &live.out)
		carry(live.stderr, logs.Stderr, &live.err)
	}
	go func() {
		live.copies.Wait()
		close(live.drained)
	}()
	done := live.handle.Done()
	r.watch.Go(func() {
		select {
		case <-done:
		case <-r.quit:
		}
		select {
		case <-r.quit: // closing the handle ends it too
			return
		default:
		}
		r.ended(c, live, live.handle.Status())
	})
}

// drainTime bounds the wait for the rest of a dead container's output, which
// only a process of another container could keep open.
const drainTime = 2 * time.Second

// ended records the end of a container and takes apart what it needed to run.
func (r *Runtime) ended(c *containerState, live *liveContainer, how process.Status) {
	rec := c.get()
	now := time.Now().UnixNano()
	if rec.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() != runtimeapi.NamespaceMode_CONTAINER {
		// In its own PID namespace all others have gone with the first.
		if err := r.engineOf(rec).KillAll(rec.Cgroup); err != nil {
			r.log.Warn("processes of a container that ended cannot be killed", "container", c.id, "error", err)
		}
	}
	timer := time.NewTimer(drainTime)
	select {
	case <-live.drained:
	case <-timer.C:
	case <-r.quit: // what is known is still recorded
	}
	timer.Stop()
	reason, note := "Completed", ""
	switch {
	case !how.Known:
		reason = "Unknown"
	case how.Code == 0:
	case r.cgroups.OOMKills(rec.Cgroup) > 0:
		reason = "OOMKilled"
	default:
		reason = "Error"
	}
	r.endContainer(c, func(rec *containerRecord) {
		rec.Phase, rec.Finished, rec.ExitCode = phaseExited, now, int32(how.Code)
		rec.Reason, rec.Message = reason, note
		rec.Process = processID{}
	})
	for _, f := range []*os.File{live.stdout, live.stderr, live.console} {
		if f != nil {
			f.Close()
		}
	}
	live.closeStdin()
	if live.holder != nil {
		endHolder(live.holder)
	}
	live.log.Close()
	live.handle.Close()
	c.mu.Lock()
	c.live = nil
	c.mu.Unlock()
	close(live.exited)
	s, _ := r.findSandbox(c.sandbox)
	r.emit(c.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, s)
	// Nobody waits for what follows.
	c.life.Lock()
	defer c.life.Unlock()
	if err := errors.Join(r.engineOf(rec).Delete(context.Background(), c.id, rec.Cgroup), r.unmount(c)); err != nil {
		r.log.Warn("a container that ended cannot be tidied up", "container", c.id, "error", err)
	}
}

// StopContainer stops a container, by force after the timeout. One that does
// not run is no error.
func (r *Runtime) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	c, err := r.findContainer(req.GetContainerId())
	if errors.Is(err, errNotFound) {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.stopContainer(ctx, c, time.Duration(req.GetTimeout())*time.Second); err != nil {
		return nil, err
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// killTime is how long the kernel may take to end what was killed.
const killTime = 2 * time.Minute

func (r *Runtime) stopContainer(ctx context.Context, c *containerState, timeout time.Duration) error {
	live := c.running()
	if live == nil {
		// One that is being started is waited for.
		c.life.Lock()
		live = c.running()
		c.life.Unlock()
		if live == nil {
			return nil
		}
	}
	if timeout > 0 {
		signal := parseSignal(c.get().StopSignal)
		if err := live.handle.Signal(signal); err != nil && !errors.Is(err, process.ErrGone) {
			return fmt.Errorf("failed to stop container %q: %w", c.id, err)
		}
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		select {
		case <-live.exited:
			return nil
		case <-timer.C:
		case <-ctx.Done():
			return fmt.Errorf("failed to stop container %q: %w", c.id, ctx.Err())
		}
	}
	if err := live.handle.Signal(unix.SIGKILL); err != nil && !errors.Is(err, process.ErrGone) {
		return fmt.Errorf("failed to kill container %q: %w", c.id, err)
	}
	timer := time.NewTimer(killTime)
	defer timer.Stop()
	select {
	case <-live.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("failed to kill container %q: %w", c.id, ctx.Err())
	case <-timer.C:
		return fmt.Errorf("failed to kill container %q: it did not end within %s", c.id, killTime)
	}
}

// ReopenContainerLog opens the log anew after it was rotated away.
func (r *Runtime) ReopenContainerLog(_ context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := r.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	live := c.running()
	if live == nil {
		return nil, fmt.Errorf("container %q is not running", c.id)
	}
	if err := live.log.Reopen(); err != nil {
		return nil, err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// parseSignal reads a signal's name or number, with "SIG" or without; SIGTERM
// if it says nothing known.
func parseSignal(name string) unix.Signal {
	name = strings.ToUpper(strings.TrimSpace(name))
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= 64 {
		return unix.Signal(n)
	}
	name = strings.TrimPrefix(name, "SIG")
	// The kernel's real-time signals begin at 32, the C library's at 34.
	for prefix, base := range map[string]int{"RTMIN": 34, "RTMAX": 64} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		rest = strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(rest)
		n := 0
		if rest != "" {
			var err error
			if n, err = strconv.Atoi(rest); err != nil {
				continue
			}
		}
		if base+n >= 34 && base+n <= 64 {
			return unix.Signal(base + n)
		}
	}
	switch name {
	case "CLD":
		name = "CHLD"
	case "POLL":
		name = "IO"
	case "IOT":
		name = "ABRT"
	}
	if s := unix.SignalNum("SIG" + name); s != 0 {
		return s
	}
	return unix.SIGTERM
}

// signalNumber is a signal's name as CRI has it.
func signalNumber(name string) runtimeapi.Signal {
	if name == "" {
		return runtimeapi.Signal_SIGNAL_SIGTERM
	}
	n := parseSignal(name)
	text := unix.SignalName(n)
	switch {
	case n == 34:
		text = "SIGRTMIN"
	case n == 64:
		text = "SIGRTMAX"
	case n > 34 && n <= 49:
		text = fmt.Sprintf("SIGRTMINPLUS%d", n-34)
	case n > 49:
		text = fmt.Sprintf("SIGRTMAXMINUS%d", 64-n)
	}
	if v, ok := runtimeapi.Signal_value["SIGNAL_"+text]; ok {
		return runtimeapi.Signal(v)
	}
	return runtimeapi.Signal_SIGNAL_SIGTERM
}
