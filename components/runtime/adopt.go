//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/container"
	"hyperkube/components/runtime/logs"
	"hyperkube/components/runtime/sandbox"
	"hyperkube/internal/host/process"
)

// adopt takes over the sandboxes and containers of a previous runtime process. It reads their
// records from disk and reattaches to their processes if the boot ID is unchanged. Partially
// created sandboxes and containers are removed.
func (r *Runtime) adopt() error {
	sandboxes, err := subdirectories(r.path("sandboxes"))
	if err != nil {
		return err
	}
	for _, id := range sandboxes {
		rec, err := loadSandbox(r.sandboxDir(id))
		if err != nil {
			r.log.Warn("sandbox has no valid record, removing it", "sandbox", id, "err", err)
			r.removeLeftoverSandbox(id)
			continue
		}
		r.adoptSandbox(rec)
	}
	containers, err := subdirectories(r.path("containers"))
	if err != nil {
		return err
	}
	for _, id := range containers {
		rec, err := loadContainer(r.containerDir(id))
		if err != nil || r.sandboxes[rec.Sandbox] == nil {
			r.log.Warn("container has no valid record or no sandbox, removing it", "container", id, "err", err)
			c := &containerState{id: id}
			if rec != nil {
				c.record = *rec
			} else {
				c.record = containerRecord{ID: id, config: &runtimeapi.ContainerConfig{}, Cgroup: filepath.Join(r.defaultCgroup(), id)}
			}
			if err := errors.Join(sandbox.KillOrphans(id), r.tearDownContainer(context.Background(), c)); err != nil {
				r.log.Warn("removing leftover container failed", "container", id, "err", err)
			}
			continue
		}
		r.adoptContainer(rec)
	}
	if err := r.removeOrphanedState(); err != nil {
		return err
	}
	r.reapUntracked()
	return r.network.Reconcile(func(id string) bool {
		s := r.sandboxes[id]
		return s != nil && s.get().Phase == phaseRunning
	})
}

func subdirectories(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the runtime's state: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (r *Runtime) adoptSandbox(rec *sandboxRecord) {
	s := &sandboxState{id: rec.ID, record: *rec}
	if rec.Boot != r.boot {
		// Processes and network state do not survive a reboot.
		r.recordSandboxExit(s, func(rec *sandboxRecord) {
			rec.Phase, rec.Process, rec.IPs, rec.Boot = phaseExited, processID{}, nil, r.boot
		})
	}
	if rec.Phase == phaseCreating {
		if err := errors.Join(sandbox.KillOrphans(rec.ID), r.tearDownSandbox(context.Background(), s), os.RemoveAll(r.sandboxDir(rec.ID))); err != nil {
			r.log.Warn("removing sandbox after interrupted creation failed", "sandbox", rec.ID, "err", err)
		}
		return
	}
	if s.get().Phase == phaseRunning {
		h, err := process.Open(rec.Process.PID, rec.Process.Start)
		if err != nil {
			r.recordSandboxExit(s, func(rec *sandboxRecord) { rec.Phase, rec.Process = phaseExited, processID{} })
		} else {
			s.handle = h
		}
	}
	r.sandboxes[rec.ID] = s
	r.selinux.Adopt(rec.Labels)
	r.names["sandbox"+sandboxName(rec.config.GetMetadata())] = rec.ID
	r.watchSandbox(s)
}

func (r *Runtime) adoptContainer(rec *containerRecord) {
	c := &containerState{id: rec.ID, sandbox: rec.Sandbox, record: *rec}
	if rec.Phase == phaseCreating {
		if err := r.tearDownContainer(context.Background(), c); err != nil {
			r.log.Warn("removing partially created container failed", "container", rec.ID, "err", err)
		}
		return
	}
	r.containers[rec.ID] = c
	r.selinux.Adopt(rec.Labels)
	pod := r.sandboxes[rec.Sandbox].get().config
	r.names["container"+containerName(rec.config.GetMetadata(), pod.GetMetadata())] = rec.ID
	switch rec.Phase {
	case phaseCreated:
		if rec.Boot == r.boot {
			return
		}
	case phaseExited:
		r.drainOutput(c) // the predecessor was stopped or killed before it had read everything
		return
	case phaseStarting:
		if rec.Boot == r.boot && r.resume(c) {
			return
		}
	case phaseRunning:
		if rec.Boot != r.boot {
			break
		}
		live, err := r.reattach(c)
		if err == nil {
			r.watchContainer(c, live)
			return
		}
		r.log.Info("container exited while the runtime was not running", "container", rec.ID, "reason", err)
	}
	r.recordLostExit(c)
}

// resume continues with a container whose start was interrupted. If its program runs, the container
// is adopted. If its program was never executed, the start is undone. Otherwise resume returns
// false.
func (r *Runtime) resume(c *containerState) bool {
	rec := c.get()
	h, progress := r.engineOf(rec).Resume(c.id)
	if h != nil {
		defer h.Close()
	}
	switch {
	case progress == container.StartPending:
		err := errors.Join(r.engineOf(rec).KillAll(rec.Cgroup), r.engineOf(rec).Delete(context.Background(), c.id, rec.Cgroup))
		if err == nil {
			r.releaseOutput(c)
			err = r.changeContainer(c, func(rec *containerRecord) { rec.Phase = phaseCreated })
		}
		if err != nil {
			r.log.Warn("undoing interrupted container start failed", "container", c.id, "err", err)
		}
		return err == nil
	case progress == container.StartCompleted && !rec.config.GetTty() && !rec.config.GetStdin():
		// Without a terminal and stdin, no state was lost with the previous process.
		now := time.Now().UnixNano()
		err := r.changeContainer(c, func(rec *containerRecord) {
			rec.Phase, rec.Started, rec.Process = phaseRunning, now, processID{h.PID(), h.Start()}
		})
		if err != nil {
			return false
		}
		live, err := r.reattach(c)
		if err != nil {
			return false
		}
		r.watchContainer(c, live)
		return true
	}
	return false
}

// reattach opens the process of a running container, its log and its streams.
func (r *Runtime) reattach(c *containerState) (*liveContainer, error) {
	rec := c.get()
	h, err := process.Open(rec.Process.PID, rec.Process.Start)
	if err != nil {
		return nil, err
	}
	live := &liveContainer{handle: h, exited: make(chan struct{}), drained: make(chan struct{})}
	r.openStreams(c, live)
	return live, nil
}

// openStreams opens the log of an adopted container and this side of its streams.
func (r *Runtime) openStreams(c *containerState, live *liveContainer) {
	rec := c.get()
	// A container whose log or streams are lost runs all the same.
	complain := func(what string, err error) {
		if err != nil {
			r.log.Warn("opening log or stream of adopted container failed", "container", c.id, "stream", what, "err", err)
		}
	}
	var err error
	live.log, err = logs.Open(rec.LogPath, r.log)
	complain("log", err)
	if rec.Holder.PID != 0 {
		live.holder, err = process.Open(rec.Holder.PID, rec.Holder.Start)
		complain("holder", err)
	}
	if live.holder != nil {
		file, err := sandbox.HeldFile(live.holder)
		complain("held", err)
		if rec.config.GetTty() {
			live.console = file
		} else {
			live.stdin = file
		}
	}
	if !rec.config.GetTty() {
		live.stdout, err = openReader(r.fifo(c.id, "stdout"))
		complain("stdout", err)
		live.stderr, err = openReader(r.fifo(c.id, "stderr"))
		complain("stderr", err)
	}
}

// recordLostExit records the exit of a container that was not observed, and cleans up after it.
func (r *Runtime) recordLostExit(c *containerState) {
	rec := c.get()
	if err := errors.Join(r.engineOf(rec).KillAll(rec.Cgroup), r.engineOf(rec).Delete(context.Background(), c.id, rec.Cgroup), r.unmount(c)); err != nil {
		r.log.Warn("cleaning up exited container failed", "container", c.id, "err", err)
	}
	r.drainOutput(c)
	if rec.Phase == phaseStarting {
		if err := sandbox.KillOrphans(c.id); err != nil {
			r.log.Warn("killing the process that holds the stdin or terminal of an exited container failed", "container", c.id, "err", err)
		}
	}
	if h, err := process.Open(rec.Holder.PID, rec.Holder.Start); err == nil && rec.Holder.PID != 0 {
		killHolder(h)
	}
	r.recordContainerExit(c, func(rec *containerRecord) {
		rec.Phase, rec.Finished, rec.ExitCode, rec.Reason = phaseExited, time.Now().UnixNano(), int32(process.UnknownStatus.Code), "Unknown"
		rec.Process, rec.Holder = processID{}, processID{}
	})
}

// removeLeftoverSandbox removes the leftovers of a sandbox without a record.
func (r *Runtime) removeLeftoverSandbox(id string) {
	cg := filepath.Join(r.defaultCgroup(), id)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := errors.Join(sandbox.KillOrphans(id), r.cgroups.Kill(cg), r.cgroups.Remove(ctx, cg),
		container.Unmount(r.shm(id)), os.RemoveAll(r.state("sandboxes", id)), os.RemoveAll(r.sandboxDir(id))); err != nil {
		r.log.Warn("removing leftover sandbox failed", "sandbox", id, "err", err)
	}
}

// removeOrphanedState removes state directories without a record.
func (r *Runtime) removeOrphanedState() error {
	ids, err := subdirectories(r.state("containers"))
	if err != nil {
		return err
	}
	for _, id := range ids {
		if r.containers[id] != nil {
			continue
		}
		if err := container.UnmountIn(r.layersDir(id)); err != nil {
			return err
		}
		mounts, err := subdirectories(r.state("containers", id))
		if err != nil {
			return err
		}
		for _, m := range mounts {
			if err := container.Unmount(r.state("containers", id, m)); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(r.state("containers", id)); err != nil {
			return fmt.Errorf("removing the state of a deleted container: %w", err)
		}
	}
	if ids, err = subdirectories(r.state("sandboxes")); err != nil {
		return err
	}
	for _, id := range ids {
		if r.sandboxes[id] != nil {
			continue
		}
		if err := container.Unmount(r.shm(id)); err != nil {
			return err
		}
		if err := os.RemoveAll(r.state("sandboxes", id)); err != nil {
			return fmt.Errorf("removing the state of a deleted sandbox: %w", err)
		}
	}
	return nil
}

// publishAdoptedPorts publishes the host ports of adopted pods again.
func (r *Runtime) publishAdoptedPorts(ctx context.Context) error {
	r.mu.Lock()
	var list []*sandboxState
	for _, s := range r.sandboxes {
		list = append(list, s)
	}
	r.mu.Unlock()
	for _, s := range list {
		rec := s.get()
		if rec.Phase != phaseRunning || hostNetwork(rec.config) || len(rec.CNI) > 0 {
			continue
		}
		ports, err := portMappings(rec.config.GetPortMappings())
		if err != nil || len(ports) == 0 {
			continue
		}
		if err := r.network.SetPorts(ctx, rec.ID, r.network.Addresses(rec.ID), ports); err != nil {
			return err
		}
	}
	return nil
}

// reapUntracked reaps zombie children that were started before this process was re-executed and are
// not tracked any more, such as processes of exec requests.
func (r *Runtime) reapUntracked() {
	known := map[int]bool{}
	for _, s := range r.sandboxes {
		known[s.get().Process.PID] = true
	}
	for _, c := range r.containers {
		rec := c.get()
		known[rec.Process.PID], known[rec.Holder.PID] = true, true
	}
	for pid := range process.Children() {
		if !known[pid] {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}
