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
	"hyperkube/components/runtime/sandbox"
	"hyperkube/internal/host/process"
)

// adopt takes over the sandboxes and containers that a previous runtime process has left running. Run calls it before
// CRI is served. It reads the record of each of them from disk and, if the machine has not been rebooted since, opens
// its process again. Sandboxes and containers whose creation was interrupted, or whose record is missing or damaged,
// are removed with their processes, mounts and cgroups. Failures to remove one are logged and do not stop the runtime.
func (s *services) adopt() error {
	sandboxes, err := subdirectories(s.path("sandboxes"))
	if err != nil {
		return err
	}
	for _, id := range sandboxes {
		rec, err := loadSandbox(s.sandboxDir(id))
		if err != nil {
			s.log.Warn("state file of pod sandbox is missing or damaged; removing the sandbox and its containers, the kubelet then starts the pod again", "podSandboxID", id, "err", err)
			s.sandboxes.removeLeftover(id)
			continue
		}
		s.sandboxes.adopt(rec)
	}
	containers, err := subdirectories(s.path("containers"))
	if err != nil {
		return err
	}
	for _, id := range containers {
		rec, err := loadContainer(s.containerDir(id))
		if err != nil || !s.inventory.hasSandbox(rec.Sandbox) {
			s.log.Warn("state file of container is missing or damaged, or its pod sandbox does not exist; removing the container, the kubelet starts it again if its pod should run", "containerID", id, "err", err)
			c := &containerState{id: id, dir: s.containerDir(id)}
			if rec != nil {
				c.record = *rec
			} else {
				c.record = containerRecord{ID: id, config: &runtimeapi.ContainerConfig{}, Cgroup: filepath.Join(s.defaultCgroup(), id)}
			}
			if err := errors.Join(sandbox.KillOrphans(id), s.containers.tearDown(context.Background(), c)); err != nil {
				s.log.Warn("removing container without valid state file or pod sandbox failed; its processes, mounts or cgroup may remain, retrying at the next start of the container runtime", "containerID", id, "err", err)
			}
			continue
		}
		s.containers.adopt(rec)
	}
	if err := s.removeOrphanedState(); err != nil {
		return err
	}
	s.reapUntracked()
	return s.network.builtin.Reconcile(func(id string) bool {
		sandbox, err := s.inventory.findSandbox(id)
		return err == nil && sandbox.id == id && sandbox.get().Phase == phaseRunning
	})
}

// subdirectories returns the names of the directories in dir, which are the IDs of sandboxes or containers.
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

// adopt adds the sandbox with the record rec, which the previous runtime process has created, to the inventory. A
// sandbox whose pause process has exited, or that is from before a reboot, becomes exited; the kubelet then replaces
// it. A sandbox in phase creating is removed instead.
func (ss *sandboxService) adopt(rec *sandboxRecord) {
	s := &sandboxState{id: rec.ID, dir: ss.sandboxDir(rec.ID), record: *rec}
	if rec.Boot != ss.boot {
		// Processes and network state do not survive a reboot.
		s.recordExit(ss.log, func(rec *sandboxRecord) {
			rec.Phase, rec.Process, rec.IPs, rec.Boot = phaseExited, processID{}, nil, ss.boot
		})
	}
	if rec.Phase == phaseCreating {
		if err := errors.Join(sandbox.KillOrphans(rec.ID), ss.tearDown(context.Background(), s), os.RemoveAll(ss.sandboxDir(rec.ID))); err != nil {
			ss.log.Warn("removing pod sandbox whose creation was interrupted by the last stop of the container runtime failed; its processes or cgroup may remain until the next reboot, retrying at the next start of the container runtime only if its directory still exists", "podSandboxID", rec.ID, "err", err)
		}
		return
	}
	if s.get().Phase == phaseRunning {
		h, err := process.Open(rec.Process.PID, rec.Process.Start)
		if err != nil {
			s.recordExit(ss.log, func(rec *sandboxRecord) { rec.Phase, rec.Process = phaseExited, processID{} })
		} else {
			s.handle = h
		}
	}
	ss.inventory.adoptSandbox(s)
	ss.selinux.Adopt(rec.Labels)
	ss.watch(s)
}

// adopt adds the container with the record rec, which the previous runtime process has created, to the
// inventory. If the container's process still runs, adopt reopens its log and streams. A container that was
// running but has no process any more becomes exited with reason Unknown, because its exit code is lost; so
// does a container that was created but not started before a reboot, and one whose interrupted start can
// neither be continued nor undone. A container in phase creating is removed instead.
func (cs *containerService) adopt(rec *containerRecord) {
	c := &containerState{id: rec.ID, sandbox: rec.Sandbox, dir: cs.containerDir(rec.ID), record: *rec}
	if rec.Phase == phaseCreating {
		if err := cs.tearDown(context.Background(), c); err != nil {
			cs.log.Warn("removing container whose creation was interrupted by the last stop of the container runtime failed; its mounts or cgroup may remain, retrying at the next start of the container runtime", "containerID", rec.ID, "err", err)
		}
		return
	}
	cs.inventory.adoptContainer(c)
	cs.selinux.Adopt(rec.Labels)
	switch rec.Phase {
	case phaseCreated:
		if rec.Boot == cs.boot {
			return
		}
	case phaseExited:
		cs.stdio.drainOutput(c) // the predecessor was stopped or killed before it had read everything
		return
	case phaseStarting:
		if rec.Boot == cs.boot && cs.resume(c) {
			return
		}
	case phaseRunning:
		if rec.Boot != cs.boot {
			break
		}
		live, err := cs.reattach(c)
		if err == nil {
			cs.watch(c, live)
			return
		}
		cs.log.Info("container exited while the container runtime was not running; its exit code is lost and its status has the reason Unknown, the kubelet restarts it according to the restart policy", "containerID", rec.ID, "reason", err)
	}
	cs.recordLostExit(c)
}

// resume continues with a container whose start was interrupted because the previous runtime process was
// killed. If its program runs, the container becomes running. If its program was not executed yet, the start is
// undone, so that the kubelet can start the container again. In both cases resume returns true. It returns
// false if that fails, if the state is unknown, or if the container has a terminal or stdin, which were lost
// with the previous process; the caller then terminates the container.
func (cs *containerService) resume(c *containerState) bool {
	rec := c.get()
	h, progress := cs.engines.of(rec).Resume(c.id)
	if h != nil {
		defer h.Close()
	}
	switch {
	case progress == container.StartPending:
		err := errors.Join(cs.engines.of(rec).KillAll(rec.Cgroup), cs.engines.of(rec).Delete(context.Background(), c.id, rec.Cgroup))
		if err == nil {
			cs.stdio.releaseOutput(c)
			err = c.change(func(rec *containerRecord) { rec.Phase = phaseCreated })
		}
		if err != nil {
			cs.log.Warn("undoing container start that was interrupted by the last stop of the container runtime failed; the container is reported as exited, and the kubelet restarts it according to the restart policy", "containerID", c.id, "err", err)
		}
		return err == nil
	case progress == container.StartCompleted && !rec.config.GetTty() && !rec.config.GetStdin():
		// Without a terminal and stdin, no state was lost with the previous process.
		now := time.Now().UnixNano()
		err := c.change(func(rec *containerRecord) {
			rec.Phase, rec.Started, rec.Process = phaseRunning, now, processID{h.PID(), h.Start()}
		})
		if err != nil {
			return false
		}
		live, err := cs.reattach(c)
		if err != nil {
			return false
		}
		cs.watch(c, live)
		return true
	}
	return false
}

// reattach opens the process, the log and the streams of an adopted container that is recorded as running. It returns
// an error if the process has exited. A log or stream that cannot be opened is logged and not an error.
func (cs *containerService) reattach(c *containerState) (*liveContainer, error) {
	rec := c.get()
	h, err := process.Open(rec.Process.PID, rec.Process.Start)
	if err != nil {
		return nil, err
	}
	live := &liveContainer{handle: h, exited: make(chan struct{}), drained: make(chan struct{})}
	cs.stdio.openStreams(c, live)
	return live, nil
}

// recordLostExit handles the exit of a container that no runtime process has observed. It kills the remaining
// processes, removes the mounts and cgroups, copies the remaining output to the log, and records the container as
// exited with reason Unknown.
func (cs *containerService) recordLostExit(c *containerState) {
	rec := c.get()
	if err := errors.Join(cs.engines.of(rec).KillAll(rec.Cgroup), cs.engines.of(rec).Delete(context.Background(), c.id, rec.Cgroup), cs.unmount(c)); err != nil {
		cs.log.Warn("removing processes, mounts or cgroup of exited container failed; they remain for now, retrying when the kubelet removes the container", "containerID", c.id, "err", err)
	}
	cs.stdio.drainOutput(c)
	if rec.Phase == phaseStarting {
		if err := sandbox.KillOrphans(c.id); err != nil {
			cs.log.Warn("killing the helper process that keeps stdin or terminal of an exited container open failed; the idle process may remain until the next reboot, no retry", "containerID", c.id, "err", err)
		}
	}
	if h, err := process.Open(rec.Holder.PID, rec.Holder.Start); err == nil && rec.Holder.PID != 0 {
		killHolder(h)
	}
	c.recordExit(cs.log, func(rec *containerRecord) {
		rec.Phase, rec.Finished, rec.ExitCode, rec.Reason = phaseExited, time.Now().UnixNano(), int32(process.UnknownStatus.Code), "Unknown"
		rec.Process, rec.Holder = processID{}, processID{}
	})
}

// removeLeftover removes the processes, cgroup, mounts and files of the sandbox id, whose directory exists although
// its record (record.json) is missing or damaged, because its creation or removal was interrupted. Failures are
// logged.
func (ss *sandboxService) removeLeftover(id string) {
	cg := filepath.Join(ss.defaultCgroup(), id)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := errors.Join(sandbox.KillOrphans(id), ss.cgroups.Kill(cg), ss.cgroups.Remove(ctx, cg),
		container.Unmount(ss.shm(id)), os.RemoveAll(ss.state("sandboxes", id)), os.RemoveAll(ss.sandboxDir(id))); err != nil {
		ss.log.Warn("removing pod sandbox without valid state file failed; its processes or cgroup may remain until the next reboot, no retry", "podSandboxID", id, "err", err)
	}
}

// removeOrphanedState unmounts and removes the directories below Config.State of sandboxes and containers that are not
// in the inventory. They remain if the runtime was killed while it removed one. adopt calls it after the inventory is
// complete.
func (s *services) removeOrphanedState() error {
	ids, err := subdirectories(s.state("containers"))
	if err != nil {
		return err
	}
	for _, id := range ids {
		if s.inventory.hasContainer(id) {
			continue
		}
		if err := container.UnmountIn(s.layersDir(id)); err != nil {
			return err
		}
		mounts, err := subdirectories(s.state("containers", id))
		if err != nil {
			return err
		}
		for _, m := range mounts {
			if err := container.Unmount(s.state("containers", id, m)); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(s.state("containers", id)); err != nil {
			return fmt.Errorf("removing the state of a deleted container: %w", err)
		}
	}
	if ids, err = subdirectories(s.state("sandboxes")); err != nil {
		return err
	}
	for _, id := range ids {
		if s.inventory.hasSandbox(id) {
			continue
		}
		if err := container.Unmount(s.shm(id)); err != nil {
			return err
		}
		if err := os.RemoveAll(s.state("sandboxes", id)); err != nil {
			return fmt.Errorf("removing the state of a deleted sandbox: %w", err)
		}
	}
	return nil
}

// reapUntracked reaps zombie child processes that no sandbox or container in the inventory refers to, such as those of
// exec requests. They are left over when this process has executed a new program of the runtime (see UpgradeError),
// which keeps its children but not the goroutines that wait for them.
func (s *services) reapUntracked() {
	known := map[int]bool{}
	for _, sandbox := range s.inventory.allSandboxes() {
		known[sandbox.get().Process.PID] = true
	}
	for _, c := range s.inventory.allContainers() {
		rec := c.get()
		known[rec.Process.PID], known[rec.Holder.PID] = true, true
	}
	for pid := range process.Children() {
		if !known[pid] {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}
