package kubelet

import (
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/volume"
	"hyperkube/internal/cgroup"
	"hyperkube/internal/hostchange"
)

// prepareHost records and makes what the volumes of all pods share.
func (k *Kubelet) prepareHost() error {
	root := k.cfg.Layout.Kubelet
	sharing, err := volume.Shared(root)
	if err != nil {
		return err
	}
	changes := []hostchange.Change{{Kind: hostchange.Mount, Name: filepath.Join(root, "pods")}, {Kind: hostchange.Mount, Name: filepath.Join(root, "plugins")}}
	if sharing.Bind {
		changes = append(changes, hostchange.Change{Kind: hostchange.Mount, Name: root})
	}
	if err := k.cfg.Journal.Record(changes...); err != nil {
		return err
	}
	return sharing.Do()
}

// prepareCgroups records and makes the cgroups that pods share.
func (k *Kubelet) prepareCgroups() error {
	if err := k.enterOwn(); err != nil {
		return err
	}
	if k.cgroups == nil {
		return nil
	}
	kubepods := k.kubepods()
	if err := k.cfg.Journal.Record(hostchange.Change{Kind: hostchange.Cgroup, Name: kubepods}); err != nil {
		return err
	}
	all := cgroup.Resources{CPUShares: uint64(k.machine.CPUs * 1024), MemoryLimit: cgroup.Unlimited}
	if k.cfg.Reserved.enforces(enforcePods) {
		all.MemoryLimit = k.memoryOfPods()
	}
	if k.cgroups.Unified() && !k.host.Limits.Tiered {
		// An earlier kubelet may have kept some.
		all.Unified = map[string]string{"memory.min": "0", "memory.low": "0"}
	}
	if err := k.cgroups.Create(kubepods, all); err != nil {
		return fmt.Errorf("making the cgroup of all pods: %w", err)
	}
	for _, class := range []v1.PodQOSClass{v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		name, r := k.host.CgroupOfClass(class), cgroup.Resources{CPUShares: 2}
		if k.cgroups.Exists(name) {
			r.CPUShares = 0 // of pods that run, which are weighed soon
		}
		if class == v1.PodQOSBurstable && all.Unified != nil {
			r.Unified = map[string]string{"memory.low": "0"}
		}
		if err := k.cgroups.Create(name, r); err != nil {
			return fmt.Errorf("making the cgroup of %s pods: %w", class, err)
		}
	}
	if _, err := os.Stat(filepath.Join(k.cgroups.Dir("memory", kubepods), "memory.swap.max")); err != nil {
		k.host.Limits.Swap = nil // a kernel that does not account for swap
	}
	if err := k.enforceReserved(); err != nil {
		return err
	}
	if k.kube != nil && k.cfg.Reserved.enforces(enforcePods) {
		k.nodeEvent(v1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
	}
	return nil
}
