package hostcgroups

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"hyperkube/components/kubelet/cri"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/process"
)

// hostCgroups returns the manager of the host's cgroup hierarchy: that of the pods' cgroups or, if the kubelet is
// configured not to create cgroups for pods, a new one. The kubelet and system processes have cgroups in both
// cases.
func (h *Host) hostCgroups() (*cgroup.Manager, error) {
	if h.cfg.Pods != nil {
		return h.cfg.Pods, nil
	}
	return cgroup.Open()
}

// enterCgroup creates the configured cgroups of the kubelet and of system processes that do not exist yet,
// after recording them in the host journal, and moves the kubelet into its cgroup. If neither is configured, it
// does nothing.
func (h *Host) enterCgroup() error {
	own, system := h.cfg.Kubelet, h.cfg.System
	if own == "" && system == "" {
		return nil
	}
	groups, err := h.hostCgroups()
	if err != nil {
		return err
	}
	for _, made := range []hostjournal.Change{{Kind: hostjournal.Cgroup, Name: own}, {Kind: hostjournal.HostCgroup, Name: system}} {
		if made.Name == "" || groups.Exists(made.Name) {
			continue
		}
		if err := h.cfg.Journal.Record(made); err != nil {
			return err
		}
		if err := groups.Create(made.Name, cgroup.Resources{}); err != nil {
			return fmt.Errorf("creating host cgroup: %w", err)
		}
	}
	if own == "" {
		return nil
	}
	if err := groups.AddProcess(own, os.Getpid()); err != nil {
		return fmt.Errorf("moving the kubelet into its cgroup: %w", err)
	}
	return nil
}

// moveInterval is the period in which new processes of the root cgroup are moved, as in upstream's
// kubelet. The kernel has no notification for them.
const moveInterval = time.Minute

// MoveSystemProcesses moves processes of the root cgroup to the configured system cgroup every moveInterval
// until ctx is done. It returns immediately if none is configured. The error is always nil.
func (h *Host) MoveSystemProcesses(ctx context.Context) error {
	if h.cfg.System == "" {
		return nil
	}
	groups, err := h.hostCgroups()
	if err != nil {
		h.cfg.Log.Warn("finding cgroups of the host failed; system processes are not moved into the system cgroup and not limited by it until the next start of the kubelet", "cgroup", h.cfg.System, "err", err)
		return nil
	}
	ticker := time.NewTicker(moveInterval)
	defer ticker.Stop()
	for {
		if err := h.moveOnce(groups, "/"); err != nil {
			h.cfg.Log.Warn("moving system processes into the system cgroup failed; they are not limited by this cgroup until a retry succeeds, retrying in a minute", "cgroup", h.cfg.System, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// moveRounds is how often a move is repeated at most, to include processes that were started during the move.
const moveRounds = 10

// moveOnce moves the processes of the cgroup from to the system cgroup, except those that must not be moved. It
// returns an error and moves nothing if the process of the container runtime cannot be found.
func (h *Host) moveOnce(groups *cgroup.Manager, from string) error {
	pid, err := cri.PID(h.cfg.RuntimeEndpoint)
	if err != nil {
		return err // the processes that must not be moved are unknown
	}
	for range moveRounds {
		moved, err := groups.Move(from, h.cfg.System, func(p int) bool { return !mustNotMove(p, pid) })
		if err != nil || moved == 0 {
			return err
		}
	}
	return nil
}

// mustNotMove reports whether a process must not be moved: the init process, kernel threads, and container
// runtimes with their descendants. A process that a runtime has started is about to enter a pod's cgroup, and
// a concurrent move must not take it out again. runtime is the process ID of the container runtime. A process
// that has exited is also reported.
func mustNotMove(pid, runtime int) bool {
	if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil {
		return true // a kernel thread or an exited process
	}
	for pid > 1 {
		if pid == runtime {
			return true
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			return true
		}
		if name, _, _ := strings.Cut(string(line), "\x00"); filepath.Base(name) == layout.RuntimeName {
			return true
		}
		parent, err := process.Parent(pid)
		if err != nil {
			return true
		}
		if parent <= 1 {
			return false
		}
		pid = parent
	}
	return true
}
