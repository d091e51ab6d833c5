//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/container"
	"hyperkube/components/runtime/logs"
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
	live.closeStreams()
	if live.holder != nil {
		live.holder.Close()
	}
}

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
		closeAll(child.Stdin, child.Stdout, child.Stderr)
		if err != nil {
			if logOpen() == nil {
				live.log.Close()
			}
			live.closeStreams()
			if live.holder != nil {
				endHolder(live.holder)
			}
		}
	}()
	if !config.GetTty() {
		if live.stdout, child.Stdout, err = r.outputFIFO(rec, "stdout"); err != nil {
			return err
		}
		if live.stderr, child.Stderr, err = r.outputFIFO(rec, "stderr"); err != nil {
			return err
		}
		if config.GetStdin() {
			if child.Stdin, live.stdin, err = r.inputFIFO(rec); err != nil {
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
	err = r.hold(pod, live)
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
	live.closeStreams()
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
