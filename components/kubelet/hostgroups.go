package kubelet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"hyperkube/internal/cgroup"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
	"hyperkube/internal/process"
)

// hostGroups is the cgroups of those that are not pods, whether pods have some or not.
func (k *Kubelet) hostGroups() (*cgroup.Manager, error) {
	if k.cgroups != nil {
		return k.cgroups, nil
	}
	return cgroup.Open()
}

// enterOwn makes the cgroups that the configuration names for the kubelet and for what
// else runs on the machine, and goes into the kubelet's.
func (k *Kubelet) enterOwn() error {
	own, system := k.cfg.Cgroups.Own, k.cfg.Cgroups.System
	if own == "" && system == "" {
		return nil
	}
	groups, err := k.hostGroups()
	if err != nil {
		return err
	}
	for _, made := range []hostchange.Change{{Kind: hostchange.Cgroup, Name: own}, {Kind: hostchange.HostCgroup, Name: system}} {
		if made.Name == "" || groups.Exists(made.Name) {
			continue
		}
		if err := k.cfg.Journal.Record(made); err != nil {
			return err
		}
		if err := groups.Create(made.Name, cgroup.Resources{}); err != nil {
			return fmt.Errorf("making a cgroup of the host's own: %w", err)
		}
	}
	if own == "" {
		return nil
	}
	if err := groups.Enter(own, os.Getpid()); err != nil {
		return fmt.Errorf("going into the kubelet's cgroup: %w", err)
	}
	return nil
}

// systemEvery is how often who is new in the root cgroup is looked for, as upstream's
// kubelet does: the kernel does not tell of it.
const systemEvery = time.Minute

// gatherSystem moves what is in the root cgroup into the one that the configuration names
// for it.
func (k *Kubelet) gatherSystem(ctx context.Context) error {
	groups, err := k.hostGroups()
	if err != nil {
		return err
	}
	ticker := time.NewTicker(systemEvery)
	defer ticker.Stop()
	for {
		if err := k.gatherOnce(groups, "/"); err != nil {
			k.log.Warn("moving processes of the system into their cgroup failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// rounds is how often those whom somebody started meanwhile are looked for at once.
const rounds = 10

func (k *Kubelet) gatherOnce(groups *cgroup.Manager, from string) error {
	pid, err := k.runtimePID()
	if err != nil {
		return err // whoever has to stay is not known
	}
	for range rounds {
		moved, err := groups.Move(from, k.cfg.Cgroups.System, func(p int) bool { return !stays(p, pid) })
		if err != nil || moved == 0 {
			return err
		}
	}
	return nil
}

// stays tells of a process whether it is the machine's first, the kernel's, or of a
// container runtime: this node's or another's of the same machine. What a runtime starts
// is on its way into a pod's cgroup, and must not be met there by a move.
func stays(pid, runtime int) bool {
	if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil {
		return true // a thread of the kernel's, or one that has ended
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
