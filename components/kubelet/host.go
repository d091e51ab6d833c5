package kubelet

import (
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/hostjournal"
)

// prepareHost records and creates the mounts that all pods' volumes share.
func (k *Kubelet) prepareHost() error {
	root := k.cfg.Layout.Kubelet
	sharing, err := volume.PlanSharedMount(root)
	if err != nil {
		return err
	}
	changes := []hostjournal.Change{{Kind: hostjournal.Mount, Name: filepath.Join(root, "pods")}, {Kind: hostjournal.Mount, Name: filepath.Join(root, "plugins")}}
	if sharing.Bind {
		changes = append(changes, hostjournal.Change{Kind: hostjournal.Mount, Name: root})
	}
	if err := k.deps.Journal.Record(changes...); err != nil {
		return err
	}
	return sharing.Apply()
}

// prepareCgroups records and creates the cgroups that pods share.
func (k *Kubelet) prepareCgroups() error {
	if err := k.enterCgroup(); err != nil {
		return err
	}
	if k.cgroups == nil {
		return nil
	}
	kubepods := k.kubepods()
	if err := k.deps.Journal.Record(hostjournal.Change{Kind: hostjournal.Cgroup, Name: kubepods}); err != nil {
		return err
	}
	all := cgroup.Resources{CPUShares: uint64(k.machine.CPUs * 1024), MemoryLimit: cgroup.Unlimited}
	if k.cfg.Reserved.Enforces(config.EnforcePods) {
		all.MemoryLimit = k.cfg.PodsMemoryLimit(k.machine)
	}
	if k.cgroups.Unified() && !k.host.Limits.Tiered {
		// An earlier kubelet may have set memory protection.
		all.Unified = map[string]string{"memory.min": "0", "memory.low": "0"}
	}
	if err := k.cgroups.Create(kubepods, all); err != nil {
		return fmt.Errorf("creating the cgroup of all pods: %w", err)
	}
	for _, class := range []v1.PodQOSClass{v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		name, r := k.cgroupNames().OfClass(class), cgroup.Resources{CPUShares: 2}
		if k.cgroups.Exists(name) {
			r.CPUShares = 0 // keep the weight, which is updated soon for the running pods
		}
		if class == v1.PodQOSBurstable && all.Unified != nil {
			r.Unified = map[string]string{"memory.low": "0"}
		}
		if err := k.cgroups.Create(name, r); err != nil {
			return fmt.Errorf("creating the cgroup of %s pods: %w", class, err)
		}
	}
	if _, err := os.Stat(filepath.Join(k.cgroups.Dir("memory", kubepods), "memory.swap.max")); err != nil {
		k.platform.DisableSwapAccounting()
	}
	if err := k.enforceReserved(); err != nil {
		return err
	}
	if k.kube != nil && k.cfg.Reserved.Enforces(config.EnforcePods) {
		k.nodeEvent(v1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
	}
	return nil
}
