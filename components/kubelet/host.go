package kubelet

import (
	"fmt"
	"os"
	"path/filepath"

	"hyperkube/components/kubelet/volume"
	"hyperkube/internal/cgroup"
	"hyperkube/internal/hostchange"
)

// prepareHost records and makes what all pods share.
func (k *Kubelet) prepareHost() error {
	kubepods := k.kubepods()
	root := k.cfg.Layout.Kubelet
	sharing, err := volume.Shared(root)
	if err != nil {
		return err
	}
	changes := []hostchange.Change{{Kind: hostchange.Mount, Name: filepath.Join(root, "pods")}, {Kind: hostchange.Mount, Name: filepath.Join(root, "plugins")}}
	if sharing.Bind {
		changes = append(changes, hostchange.Change{Kind: hostchange.Mount, Name: root})
	}
	if k.cgroups != nil {
		changes = append(changes, hostchange.Change{Kind: hostchange.Cgroup, Name: kubepods})
	}
	if err := k.cfg.Journal.Record(changes...); err != nil {
		return err
	}
	if err := sharing.Do(); err != nil {
		return err
	}
	if k.cgroups == nil {
		return nil
	}
	all := cgroup.Resources{CPUShares: uint64(k.machine.CPUs * 1024), MemoryLimit: cgroup.Unlimited}
	if k.cfg.enforces(enforcePods) {
		all.MemoryLimit = k.memoryOfPods()
	}
	if k.cgroups.Unified() && !k.host.Tiered {
		// An earlier kubelet may have kept some.
		all.Unified = map[string]string{"memory.min": "0", "memory.low": "0"}
	}
	if err := k.cgroups.Create(kubepods, all); err != nil {
		return fmt.Errorf("making the cgroup of all pods: %w", err)
	}
	for _, name := range []string{"burstable", "besteffort"} {
		r := cgroup.Resources{CPUShares: 2}
		if k.cgroups.Exists(filepath.Join(kubepods, name)) {
			r.CPUShares = 0 // of pods that run, which are weighed soon
		}
		if name == "burstable" && all.Unified != nil {
			r.Unified = map[string]string{"memory.low": "0"}
		}
		if err := k.cgroups.Create(filepath.Join(kubepods, name), r); err != nil {
			return fmt.Errorf("making the cgroup of %s pods: %w", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(k.cgroups.Dir("memory", kubepods), "memory.swap.max")); err != nil {
		k.host.Swap = nil // a kernel that does not account for swap
	}
	return k.enforceReserved()
}
