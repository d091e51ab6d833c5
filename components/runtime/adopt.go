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
	"hyperkube/internal/process"
)

// adopt takes over what a predecessor left: records on the disk, and the
// processes that they name if this is still the same boot. What was half made
// is removed.
func (r *Runtime) adopt() error {
	sandboxes, err := folders(r.path("sandboxes"))
	if err != nil {
		return err
	}
	for _, id := range sandboxes {
		rec, err := loadSandbox(r.sandboxDir(id))
		if err != nil {
			r.log.Warn("a sandbox's record is damaged and removed", "sandbox", id, "error", err)
			r.removeDebris(id)
			continue
		}
		r.adoptSandbox(rec)
	}
	containers, err := folders(r.path("containers"))
	if err != nil {
		return err
	}
	for _, id := range containers {
		rec, err := loadContainer(r.containerDir(id))
		if err != nil || r.sandboxes[rec.Sandbox] == nil {
			r.log.Warn("a container without a record or a sandbox is removed", "container", id, "error", err)
			c := &containerState{id: id}
			if rec != nil {
				c.record = *rec
			} else {
				c.record = containerRecord{ID: id, config: &runtimeapi.ContainerConfig{}, Cgroup: filepath.Join(r.defaultCgroup(), id)}
			}
			if err := r.unmakeContainer(context.Background(), c); err != nil {
				r.log.Warn("the rest of a container cannot be removed", "container", id, "error", err)
			}
			continue
		}
		r.adoptContainer(rec)
	}
	if err := r.sweepState(); err != nil {
		return err
	}
	r.reapOthers()
	return r.network.Reconcile(func(id string) bool {
		s := r.sandboxes[id]
		return s != nil && s.get().Phase == phaseRunning
	})
}

func folders(dir string) ([]string, error) {
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
		// All of it went with the boot.
		r.endSandbox(s, func(rec *sandboxRecord) {
			rec.Phase, rec.Process, rec.IPs, rec.Boot = phaseExited, processID{}, nil, r.boot
		})
	}
	if rec.Phase == phaseCreating {
		if err := errors.Join(sandbox.Orphans(rec.ID), r.unmakeSandbox(context.Background(), s), os.RemoveAll(r.sandboxDir(rec.ID))); err != nil {
			r.log.Warn("a half made sandbox cannot be removed", "sandbox", rec.ID, "error", err)
		}
		return
	}
	if s.get().Phase == phaseRunning {
		h, err := process.Open(rec.Process.PID, rec.Process.Start)
		if err != nil {
			r.endSandbox(s, func(rec *sandboxRecord) { rec.Phase, rec.Process = phaseExited, processID{} })
		} else {
			s.handle = h
		}
	}
	r.sandboxes[rec.ID] = s
	r.selinux.Adopt(rec.Labels)
	r.names["sandbox"+sandboxName(rec.config.GetMetadata())] = rec.ID
	r.followSandbox(s)
}

func (r *Runtime) adoptContainer(rec *containerRecord) {
	c := &containerState{id: rec.ID, sandbox: rec.Sandbox, record: *rec}
	if rec.Phase == phaseCreating {
		if err := r.unmakeContainer(context.Background(), c); err != nil {
			r.log.Warn("a half made container cannot be removed", "container", rec.ID, "error", err)
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
			r.follow(c, live)
			return
		}
		r.log.Info("a container ended while no runtime was there", "container", rec.ID, "reason", err)
	}
	r.lost(c)
}

// resume goes on with a container whose start was cut short: one that runs is
// adopted, one whose program was never executed is as it was before. It tells
// whether it is either.
func (r *Runtime) resume(c *containerState) bool {
	rec := c.get()
	h, progress := r.engineOf(rec).Resume(c.id)
	if h != nil {
		defer h.Close()
	}
	switch {
	case progress == container.Before:
		err := errors.Join(r.engineOf(rec).KillAll(rec.Cgroup), r.engineOf(rec).Delete(context.Background(), c.id, rec.Cgroup))
		if err == nil {
			err = r.changeContainer(c, func(rec *containerRecord) { rec.Phase = phaseCreated })
		}
		if err != nil {
			r.log.Warn("a container that was about to start cannot be taken back", "container", c.id, "error", err)
		}
		return err == nil
	case progress == container.After && !rec.config.GetTty() && !rec.config.GetStdin():
		// Without these, nothing of it went with the predecessor.
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
		r.follow(c, live)
		return true
	}
	return false
}

// reattach finds a running container's process and the ends of its streams.
func (r *Runtime) reattach(c *containerState) (*liveContainer, error) {
	rec := c.get()
	h, err := process.Open(rec.Process.PID, rec.Process.Start)
	if err != nil {
		return nil, err
	}
	live := &liveContainer{handle: h, exited: make(chan struct{}), drained: make(chan struct{})}
	// A container whose log or streams are lost runs all the same.
	complain := func(what string, err error) {
		if err != nil {
			r.log.Warn("an adopted container has lost a stream", "container", c.id, "stream", what, "error", err)
		}
	}
	live.log, err = logs.Open(rec.LogPath, r.log)
	complain("log", err)
	if rec.Holder.PID != 0 {
		live.holder, err = process.Open(rec.Holder.PID, rec.Holder.Start)
		complain("holder", err)
	}
	if live.holder != nil {
		held, err := sandbox.Held(live.holder)
		complain("held", err)
		if rec.config.GetTty() {
			live.console = held
		} else {
			live.stdin = held
		}
	}
	if !rec.config.GetTty() {
		live.stdout, err = openReader(r.fifo(c.id, "stdout"))
		complain("stdout", err)
		live.stderr, err = openReader(r.fifo(c.id, "stderr"))
		complain("stderr", err)
	}
	return live, nil
}

// lost records the end of a container that nobody saw, and removes what is
// left of it.
func (r *Runtime) lost(c *containerState) {
	rec := c.get()
	if err := errors.Join(r.engineOf(rec).KillAll(rec.Cgroup), r.engineOf(rec).Delete(context.Background(), c.id, rec.Cgroup), r.unmount(c)); err != nil {
		r.log.Warn("a container that ended cannot be tidied up", "container", c.id, "error", err)
	}
	if h, err := process.Open(rec.Holder.PID, rec.Holder.Start); err == nil && rec.Holder.PID != 0 {
		endHolder(h)
	}
	r.endContainer(c, func(rec *containerRecord) {
		rec.Phase, rec.Finished, rec.ExitCode, rec.Reason = phaseExited, time.Now().UnixNano(), int32(process.Unknown.Code), "Unknown"
		rec.Process, rec.Holder = processID{}, processID{}
	})
}

// removeDebris removes what is left of a sandbox without a record.
func (r *Runtime) removeDebris(id string) {
	cg := filepath.Join(r.defaultCgroup(), id)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := errors.Join(sandbox.Orphans(id), r.cgroups.Kill(cg), r.cgroups.Remove(ctx, cg),
		container.Unmount(r.shm(id)), os.RemoveAll(r.state("sandboxes", id)), os.RemoveAll(r.sandboxDir(id))); err != nil {
		r.log.Warn("the rest of a sandbox cannot be removed", "sandbox", id, "error", err)
	}
}

// sweepState removes the state of what has no record any more.
func (r *Runtime) sweepState() error {
	ids, err := folders(r.state("containers"))
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
		mounts, err := folders(r.state("containers", id))
		if err != nil {
			return err
		}
		for _, m := range mounts {
			if err := container.Unmount(r.state("containers", id, m)); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(r.state("containers", id)); err != nil {
			return fmt.Errorf("removing the state of a gone container: %w", err)
		}
	}
	if ids, err = folders(r.state("sandboxes")); err != nil {
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
			return fmt.Errorf("removing the state of a gone sandbox: %w", err)
		}
	}
	return nil
}

// restorePorts gives the network the host ports of adopted pods again.
func (r *Runtime) restorePorts(ctx context.Context) error {
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

// reapOthers reaps children that ended while this process was another program,
// and that nobody follows any more: the last of exec requests.
func (r *Runtime) reapOthers() {
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
