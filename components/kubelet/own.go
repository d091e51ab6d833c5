package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/cpus"
	"hyperkube/components/kubelet/devices"
	"hyperkube/components/kubelet/dra"
	"hyperkube/components/kubelet/memory"
	"hyperkube/components/kubelet/numa"
	"hyperkube/components/kubelet/pods"
	"hyperkube/components/kubelet/podsapi"
	"hyperkube/components/kubelet/topology"
)

// newOwn makes what gives containers resources for themselves: devices, CPUs
// and memory, near to each other where a policy wants it.
func (k *Kubelet) newOwn() error {
	machine, err := numa.Read("/sys/devices/system/node")
	if errors.Is(err, os.ErrNotExist) {
		err = nil
		machine = numa.Flat(cpuset.CPUSet{}, map[v1.ResourceName]int64{v1.ResourceMemory: k.machine.MemoryBytes})
	}
	if err != nil {
		return err
	}
	known := k.sourcesKnown.Load
	if k.cfg.Gates.Enabled(gatePodsAPI, true) {
		if k.podsAPI, err = podsapi.New(podsapi.Config{Pods: k.manager.Pods, Known: known, Count: k.metrics, Log: k.log}); err != nil {
			return err
		}
		k.host.Hooks.Told, k.host.Hooks.Gone = k.podsAPI.Updated, k.podsAPI.Removed
	}
	if k.devices, err = devices.New(devices.Config{
		Dir: filepath.Join(k.cfg.Layout.Kubelet, "device-plugins"), Nodes: machine.All(), Active: k.manager.Active, Known: known,
		Changed: k.devicesChanged, Log: k.log, Metrics: k.metrics,
	}); err != nil {
		return err
	}
	if k.claims, err = dra.New(dra.Config{Root: k.cfg.Layout.Kubelet, NodeName: k.cfg.NodeName, Kube: k.kube, Changed: k.devicesChanged, Log: k.log, Metrics: k.metrics}); err != nil {
		return err
	}
	providers := []topology.Provider{k.devices}
	if k.cpus, err = k.newCPUs(machine); err != nil {
		return err
	}
	if k.cpus != nil {
		providers = append(providers, k.cpus)
		k.spread = newSpreader(k.cri.Runtime, k.cpus.Of, k.log)
		k.host.Hooks.Started = k.spread.started
	}
	if k.memory, err = k.newMemory(machine); err != nil {
		return err
	}
	if k.memory != nil {
		providers = append(providers, k.memory)
	}
	k.topology, err = topology.New(topology.Config{
		Policy: k.cfg.Topology.Policy, Scope: k.cfg.Topology.Scope, Options: k.cfg.Topology.Options, Machine: machine, Providers: providers, Metrics: k.metrics,
	})
	return err
}

func guaranteed(p *v1.Pod) bool { return pods.QOS(p) == v1.PodQOSGuaranteed }

// newCPUs makes what gives containers CPUs of their own; nil when nobody gets
// any.
func (k *Kubelet) newCPUs(nodes numa.Machine) (*cpus.Manager, error) {
	file := filepath.Join(k.cfg.Layout.Kubelet, "cpu_manager_state")
	if !k.cfg.CPUs.Static {
		some, err := cpus.Given(file)
		if err == nil && some {
			err = fmt.Errorf(`could not restore state from checkpoint: configured policy "none" differs from state checkpoint policy "static", please drain this node and delete the CPU manager checkpoint file %q before restarting Kubelet`, file)
		}
		return nil, err
	}
	machine, err := cpus.Read("/sys/devices/system/cpu")
	if err != nil {
		return nil, err
	}
	machine = machine.On(nodes)
	reserved := k.cfg.CPUs.Reserved
	if reserved.IsEmpty() {
		cpu := k.cfg.Reserved.All[v1.ResourceCPU]
		n := int((cpu.MilliValue() + 999) / 1000)
		if n > len(machine) {
			return nil, fmt.Errorf("%d reserved CPUs are more than there are", n)
		}
		reserved = machine.Choose(machine.All(), n, false)
	}
	return cpus.New(cpus.Config{
		Machine: machine, Reserved: reserved, Strict: k.cfg.CPUs.Strict, WholeCores: k.cfg.CPUs.Whole, ByCache: k.cfg.CPUs.ByCache, Spread: k.cfg.CPUs.Spread,
		File:       file,
		Guaranteed: guaranteed, Active: k.manager.Active, Known: k.sourcesKnown.Load, Log: k.log, Metrics: k.metrics,
	})
}

// newMemory makes what gives containers memory on certain NUMA nodes; nil when
// it may be on all of them.
func (k *Kubelet) newMemory(machine numa.Machine) (*memory.Manager, error) {
	file := filepath.Join(k.cfg.Layout.Kubelet, "memory_manager_state")
	if !k.cfg.Memory.Static {
		some, err := memory.Given(file)
		if err == nil && some {
			err = fmt.Errorf(`could not restore state from checkpoint: [memorymanager] configured policy "None" differs from state checkpoint policy "Static", please drain this node and delete the memory manager checkpoint file %q before restarting Kubelet`, file)
		}
		return nil, err
	}
	all := map[v1.ResourceName]int64{}
	for name, q := range k.reserved() {
		if name == v1.ResourceMemory || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			all[name] = q.Value()
		}
	}
	reserved, err := memory.Reserve(machine, k.cfg.Memory.Reserved, all)
	if err != nil {
		return nil, err
	}
	return memory.New(memory.Config{
		Machine: machine, Reserved: reserved, File: file,
		Guaranteed: guaranteed, Active: k.manager.Active, Known: k.sourcesKnown.Load, Log: k.log, Metrics: k.metrics,
	})
}

// allocate gives a new pod what it has for itself.
func (k *Kubelet) allocate(ctx context.Context, pod *v1.Pod) *pods.Verdict {
	var before cpuset.CPUSet
	if k.cpus != nil {
		before = k.cpus.Shared()
	}
	err := k.topology.Admit(ctx, pod)
	var align *cpus.AlignmentError
	switch {
	case errors.Is(err, topology.ErrAffinity):
		return &pods.Verdict{Reason: "TopologyAffinityError", Message: err.Error()}
	case errors.As(err, &align):
		return &pods.Verdict{Reason: "SMTAlignmentError", Message: err.Error()}
	case err != nil:
		return &pods.Verdict{Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
	}
	if k.cpus != nil && !before.Equals(k.cpus.Shared()) {
		k.spread.now(ctx)
	}
	return nil
}

// released takes back what a pod that has ended had for itself.
func (k *Kubelet) released(uid types.UID) {
	if k.cfg.Policies != nil {
		k.cfg.Policies.Forget(uid)
	}
	if err := k.devices.Release(uid); err != nil {
		k.log.Warn("taking back a pod's devices failed", "error", err)
	}
	if k.memory != nil {
		if err := k.memory.Release(uid); err != nil {
			k.log.Warn("taking back a pod's memory failed", "error", err)
		}
	}
	if k.cpus == nil {
		return
	}
	changed, err := k.cpus.Release(uid)
	if err != nil {
		k.log.Warn("taking back a pod's CPUs failed", "error", err)
	}
	if changed {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		k.spread.now(ctx)
	}
}

// ownCPUs are the CPUs that are a container's own, as numbers; nil for none.
func (k *Kubelet) ownCPUs(pod types.UID, container string) []int64 {
	if k.cpus == nil {
		return nil
	}
	set, own := k.cpus.Of(pod, container)
	if !own {
		return nil
	}
	return numbers(set)
}

func numbers(set cpuset.CPUSet) []int64 {
	var out []int64
	for _, id := range set.List() {
		out = append(out, int64(id))
	}
	return out
}
