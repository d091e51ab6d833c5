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
	"hyperkube/internal/host/process"
)

// liveContainer contains the open process, log and streams of a running container. It exists from the start or adoption
// of the container until its exit is recorded.
type liveContainer struct {
	handle *process.Handle
	// holder is the process that keeps the terminal or stdin open across restarts of the runtime. It
	// is nil without terminal and stdin.
	holder *process.Handle
	log    *logs.Log

	// stdout and stderr are read until EOF. With a terminal, stdout is the output of the terminal.
	stdout, stderr *os.File
	out, err       logs.Hub
	copies         sync.WaitGroup
	// drained is closed when both streams are at EOF.
	drained chan struct{}

	// console is the terminal. stdin is the pipe without a terminal. Nil if there is none.
	console *os.File
	stdinMu sync.Mutex // guards the fields below
	stdin   *os.File
	inputs  map[*os.File]bool // inputs of attach clients, see attachStdin

	// exited is closed when the exit is recorded.
	exited chan struct{}
}

// StartContainer starts the program of a container in phase created. If the start fails, the container is recorded as
// exited with code 128 and reason StartError, and cannot be started again.
func (cs *containerService) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	c, err := cs.inventory.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	c.lifecycleMu.Lock()
	defer c.lifecycleMu.Unlock()
	if p := c.get().Phase; p != phaseCreated {
		return nil, fmt.Errorf("container is in %s state", containerPhase(p))
	}
	s, err := cs.inventory.findSandbox(c.sandbox)
	if err != nil {
		return nil, fmt.Errorf("sandbox %q not found: %w", c.sandbox, err)
	}
	if !s.acceptsContainers() {
		return nil, fmt.Errorf("sandbox container %q is not running", c.sandbox)
	}
	if err := cs.start(c, s.get()); err != nil {
		now := time.Now().UnixNano()
		c.recordExit(cs.log, func(rec *containerRecord) {
			rec.Phase, rec.Finished, rec.ExitCode = phaseExited, now, 128
			rec.Reason, rec.Message = "StartError", err.Error()
		})
		return nil, fmt.Errorf("failed to start container %q: %w", c.id, err)
	}
	cs.events.emit(c.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, s)
	return &runtimeapi.StartContainerResponse{}, nil
}

// start opens the log, creates the streams and starts the container's program with the engine of its handler. pod is
// the record of its sandbox. After an error no process of the container remains. The caller must hold lifecycleMu.
func (cs *containerService) start(c *containerState, pod sandboxRecord) (err error) {
	c.mu.Lock()
	spec := c.spec
	c.spec = nil
	c.mu.Unlock()
	rec := c.get()
	config := rec.config
	if spec == nil {
		image, err := cs.images.Get(rec.ImageID)
		if err != nil {
			return err
		}
		mounts, err := cs.specs.resolveMounts(c, pod, image.Config, true)
		if err != nil {
			return err
		}
		if spec, err = cs.specs.build(c, pod, image.Config, mounts); err != nil {
			return err
		}
	}
	if err := c.change(func(rec *containerRecord) { rec.Phase = phaseStarting }); err != nil {
		return err
	}
	live := &liveContainer{exited: make(chan struct{}), drained: make(chan struct{})}
	// Before the container's program is executed, wait for this.
	opened := make(chan error, 1)
	go func() {
		var err error
		live.log, err = logs.Open(rec.LogPath, cs.log)
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
				killHolder(live.holder)
			}
		}
	}()
	if !config.GetTty() {
		defer func() {
			if err != nil {
				cs.stdio.releaseOutput(c)
			}
		}()
		if live.stdout, child.Stdout, err = cs.stdio.outputFIFO(rec, "stdout"); err != nil {
			return err
		}
		if live.stderr, child.Stderr, err = cs.stdio.outputFIFO(rec, "stderr"); err != nil {
			return err
		}
		cs.stdio.keepOutput(c)
		if config.GetStdin() {
			if child.Stdin, live.stdin, err = cs.stdio.inputFIFO(rec); err != nil {
				return err
			}
		}
	}
	running, err := cs.engines.of(rec).Start(c.id, spec, child)
	if err != nil {
		return err
	}
	live.handle, live.console = running.Handle, running.Console
	now := time.Now().UnixNano()
	err = cs.stdio.startHolder(c.id, pod, live)
	if err == nil {
		err = c.change(func(rec *containerRecord) {
			rec.Phase, rec.Started, rec.Boot = phaseRunning, now, cs.boot
			rec.Process = processID{running.PID(), running.Start()}
			if live.holder != nil {
				rec.Holder = processID{live.holder.PID(), live.holder.Start()}
			}
		})
	}
	if err != nil {
		// The container would not be recorded as running.
		_ = cs.engines.of(rec).KillAll(rec.Cgroup)
		_ = live.handle.Signal(unix.SIGKILL)
		<-live.handle.Done()
		return err
	}
	cs.watch(c, live)
	return nil
}

// watch starts copying a running container's output to its log, and waits in the background for the exit of its
// process to call handleExit, unless the runtime stops before.
func (cs *containerService) watch(c *containerState, live *liveContainer) {
	c.mu.Lock()
	c.live = live
	c.mu.Unlock()
	cs.stdio.carry(c, live)
	done := live.handle.Done()
	cs.background.Go(func() {
		select {
		case <-done:
		case <-cs.background.quit:
		}
		select {
		case <-cs.background.quit: // closing the handle also closes Done
			return
		default:
		}
		cs.handleExit(c, live, live.handle.Status())
	})
}

// drainTimeout bounds the wait for the remaining output of a process that has exited. The wait ends early in general;
// it takes longer only if another process has inherited the streams and keeps them open.
const drainTimeout = 2 * time.Second

// handleExit is called when the first process of a container has exited with the status how. It kills the
// container's other processes, unless the kernel has because the container had its own PID namespace, waits for
// the remaining output, records the exit, wakes waiters on live.exited and emits an event. Then it deletes the
// cgroup and the mounts. The container stays in the inventory until RemoveContainer.
func (cs *containerService) handleExit(c *containerState, live *liveContainer, how process.Status) {
	rec := c.get()
	now := time.Now().UnixNano()
	if rec.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() != runtimeapi.NamespaceMode_CONTAINER {
		// In a private PID namespace the kernel has killed all other processes.
		if err := cs.engines.of(rec).KillAll(rec.Cgroup); err != nil {
			cs.log.Warn("killing remaining processes of exited container failed; they may still run, retrying when the kubelet removes the container", "containerID", c.id, "err", err)
		}
	}
	drained := cs.stdio.awaitOutput(live) // if not, what is known is still recorded
	reason, note := "Completed", ""
	switch {
	case !how.Known:
		reason = "Unknown"
	case how.Code == 0:
	case cs.cgroups.OOMKills(rec.Cgroup) > 0:
		reason = "OOMKilled"
	default:
		reason = "Error"
	}
	c.recordExit(cs.log, func(rec *containerRecord) {
		rec.Phase, rec.Finished, rec.ExitCode = phaseExited, now, int32(how.Code)
		rec.Reason, rec.Message = reason, note
		rec.Process = processID{}
	})
	live.closeStreams()
	if drained {
		cs.stdio.releaseOutput(c)
	}
	if live.holder != nil {
		if drained {
			killHolder(live.holder)
		} else {
			live.holder.Close() // it keeps the terminal open for the successor
		}
	}
	live.log.Close()
	live.handle.Close()
	c.mu.Lock()
	c.live = nil
	c.mu.Unlock()
	close(live.exited)
	s, _ := cs.inventory.findSandbox(c.sandbox)
	cs.events.emit(c.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, s)
	// No caller waits for the rest.
	c.lifecycleMu.Lock()
	defer c.lifecycleMu.Unlock()
	if err := errors.Join(cs.engines.of(rec).Delete(context.Background(), c.id, rec.Cgroup), cs.unmount(c)); err != nil {
		cs.log.Warn("removing mounts or cgroup of exited container failed; they remain for now, retrying when the kubelet removes the container", "containerID", c.id, "err", err)
	}
}

// StopContainer sends the stop signal to a container, and SIGKILL if it has not exited after the timeout in the
// request. With timeout zero it sends SIGKILL only. It returns when the exit is recorded. It is not an error if the
// container does not run or does not exist.
func (cs *containerService) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	c, err := cs.inventory.findContainer(req.GetContainerId())
	if errors.Is(err, errNotFound) {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := cs.stop(ctx, c, time.Duration(req.GetTimeout())*time.Second); err != nil {
		return nil, err
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// killTimeout is how long stop waits for the exit of a process after SIGKILL before it returns an error. A process that
// waits for a disk or network file system exits late.
const killTimeout = 2 * time.Minute

// stop implements StopContainer for a container: it sends the stop signal and, after timeout or immediately if
// that is 0, SIGKILL. It returns an error if the container does not exit within killTimeout after that. It also
// waits for a start in progress, so the container does not run after stop has returned nil, unless it is
// started again.
func (cs *containerService) stop(ctx context.Context, c *containerState, timeout time.Duration) error {
	live := c.running()
	if live == nil {
		// Wait for a start in progress.
		c.lifecycleMu.Lock()
		live = c.running()
		c.lifecycleMu.Unlock()
		if live == nil {
			return nil
		}
	}
	if timeout > 0 {
		signal := parseSignal(c.get().StopSignal)
		if err := live.handle.Signal(signal); err != nil && !errors.Is(err, process.ErrNotFound) {
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
	if err := live.handle.Signal(unix.SIGKILL); err != nil && !errors.Is(err, process.ErrNotFound) {
		return fmt.Errorf("failed to kill container %q: %w", c.id, err)
	}
	timer := time.NewTimer(killTimeout)
	defer timer.Stop()
	select {
	case <-live.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("failed to kill container %q: %w", c.id, ctx.Err())
	case <-timer.C:
		return fmt.Errorf("failed to kill container %q: it did not exit within %s", c.id, killTimeout)
	}
}

// ReopenContainerLog opens a new log file after the kubelet has renamed the old one to rotate it. It returns an error
// if the container does not run.
func (cs *containerService) ReopenContainerLog(_ context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := cs.inventory.findContainer(req.GetContainerId())
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
