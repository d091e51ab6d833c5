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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/resources/cpumanager"
	"hyperkube/components/kubelet/resources/devicemanager"
	"hyperkube/components/kubelet/resources/dra"
	"hyperkube/components/kubelet/resources/memorymanager"
	"hyperkube/components/kubelet/resources/numa"
	"hyperkube/components/kubelet/resources/topology"
	"hyperkube/components/kubelet/server/podsapi"
)

// newResourceManagers creates the managers of devices, CPUs and memory, and the topology manager that aligns
// them.
func (k *Kubelet) newResourceManagers() error {
	machine, err := numa.Read("/sys/devices/system/node")
	if errors.Is(err, os.ErrNotExist) {
		err = nil
		machine = numa.Flat(cpuset.CPUSet{}, map[v1.ResourceName]int64{v1.ResourceMemory: k.machine.MemoryBytes})
	}
	if err != nil {
		return err
	}
	known := k.sourcesKnown.Load
	if k.cfg.Gates.Enabled(config.GatePodsAPI, true) {
		if k.podsAPI, err = podsapi.New(podsapi.Config{Pods: k.pods.Pods, Known: known, Count: k.metrics, Log: k.log}); err != nil {
			return err
		}
	}
	if k.devices, err = devicemanager.New(devicemanager.Config{
		Dir: filepath.Join(k.cfg.Layout.Kubelet, "device-plugins"), Nodes: machine.All(), Active: k.pods.Active, Known: known,
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
		k.cpuSetUpdater = newCPUSetUpdater(k.cri.Runtime, k.cpus.Get, k.log)
	}
	if k.memory, err = k.newMemory(machine); err != nil {
		return err
	}
	if k.memory != nil {
		providers = append(providers, k.memory)
	}
	k.topology, err = topology.New(topology.Config{
		Policy: k.cfg.Resources.Topology.Policy, Scope: k.cfg.Resources.Topology.Scope, Options: k.cfg.Resources.Topology.Options, Machine: machine, Providers: providers, Metrics: k.metrics,
	})
	return err
}

func guaranteed(p *v1.Pod) bool { return pods.QOS(p) == v1.PodQOSGuaranteed }

// newCPUs creates the CPU manager. It returns nil without the static policy.
func (k *Kubelet) newCPUs(nodes numa.Machine) (*cpumanager.Manager, error) {
	file := filepath.Join(k.cfg.Layout.Kubelet, "cpu_manager_state")
	if !k.cfg.Resources.CPUs.Static {
		some, err := cpumanager.HasAllocations(file)
		if err == nil && some {
			err = fmt.Errorf(`could not restore state from checkpoint: configured policy "none" differs from state checkpoint policy "static", please drain this node and delete the CPU manager checkpoint file %q before restarting Kubelet`, file)
		}
		return nil, err
	}
	machine, err := cpumanager.Read("/sys/devices/system/cpu")
	if err != nil {
		return nil, err
	}
	machine = machine.WithNUMANodes(nodes)
	reserved := k.cfg.Resources.CPUs.Reserved
	if reserved.IsEmpty() {
		cpu := k.cfg.Reserved.All[v1.ResourceCPU]
		n := int((cpu.MilliValue() + 999) / 1000)
		if n > len(machine) {
			return nil, fmt.Errorf("%d reserved CPUs exceed the number of CPUs", n)
		}
		reserved = machine.Choose(machine.All(), n, false)
	}
	return cpumanager.New(cpumanager.Config{
		Machine: machine, Reserved: reserved, StrictReservation: k.cfg.Resources.CPUs.Strict, FullPCPUsOnly: k.cfg.Resources.CPUs.Whole, AlignByUncoreCache: k.cfg.Resources.CPUs.ByCache, DistributeAcrossNUMA: k.cfg.Resources.CPUs.Spread,
		File:       file,
		Guaranteed: guaranteed, Active: k.pods.Active, Known: k.sourcesKnown.Load, Log: k.log, Metrics: k.metrics,
	})
}

// newMemory creates the memory manager. It returns nil without the Static policy.
func (k *Kubelet) newMemory(machine numa.Machine) (*memorymanager.Manager, error) {
	file := filepath.Join(k.cfg.Layout.Kubelet, "memory_manager_state")
	if !k.cfg.Resources.Memory.Static {
		some, err := memorymanager.HasAllocations(file)
		if err == nil && some {
			err = fmt.Errorf(`could not restore state from checkpoint: [memorymanager] configured policy "None" differs from state checkpoint policy "Static", please drain this node and delete the memory manager checkpoint file %q before restarting Kubelet`, file)
		}
		return nil, err
	}
	all := map[v1.ResourceName]int64{}
	for name, q := range k.cfg.Unallocatable(k.machine) {
		if name == v1.ResourceMemory || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			all[name] = q.Value()
		}
	}
	reserved, err := memorymanager.Reserve(machine, k.cfg.Resources.Memory.Reserved, all)
	if err != nil {
		return nil, err
	}
	return memorymanager.New(memorymanager.Config{
		Machine: machine, Reserved: reserved, File: file,
		Guaranteed: guaranteed, Active: k.pods.Active, Known: k.sourcesKnown.Load, Log: k.log, Metrics: k.metrics,
	})
}

// allocate allocates devices, CPUs and memory to a new pod.
func (k *Kubelet) allocate(ctx context.Context, pod *v1.Pod) *pods.Verdict {
	var before cpuset.CPUSet
	if k.cpus != nil {
		before = k.cpus.Shared()
	}
	err := k.topology.Admit(ctx, pod)
	var align *cpumanager.AlignmentError
	switch {
	case errors.Is(err, topology.ErrAffinity):
		return &pods.Verdict{Reason: "TopologyAffinityError", Message: err.Error()}
	case errors.As(err, &align):
		return &pods.Verdict{Reason: "SMTAlignmentError", Message: err.Error()}
	case err != nil:
		return &pods.Verdict{Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
	}
	if k.cpus != nil && !before.Equals(k.cpus.Shared()) {
		k.cpuSetUpdater.updateAll(ctx)
	}
	return nil
}

// resources implements pods.ResourceManager.
type resources struct{ k *Kubelet }

func (r resources) PrepareContainer(ctx context.Context, pod *v1.Pod, c *v1.Container, cfg *runtimeapi.ContainerConfig) error {
	return r.k.extend(ctx, pod, c, cfg)
}

func (r resources) ContainerStarted(ctx context.Context, pod *v1.Pod, container, id string, cfg *runtimeapi.ContainerConfig) {
	if r.k.cpuSetUpdater != nil {
		r.k.cpuSetUpdater.containerStarted(ctx, pod, container, id, cfg)
	}
}

func (r resources) PodTerminated(pod types.UID) { r.k.release(pod) }

func (r resources) DeviceHealth(pod *v1.Pod, container string) []v1.ResourceStatus {
	return append(r.k.devices.Health(pod.UID, container), r.k.claims.Health(pod, container)...)
}

// release frees what was allocated to a terminated pod.
func (k *Kubelet) release(uid types.UID) {
	if k.deps.Policies != nil {
		k.deps.Policies.Forget(uid)
	}
	if err := k.devices.Release(uid); err != nil {
		k.log.Warn("releasing device plugin devices of pod failed", "uid", uid, "err", err)
	}
	if k.memory != nil {
		if err := k.memory.Release(uid); err != nil {
			k.log.Warn("releasing memory of pod failed", "err", err)
		}
	}
	if k.cpus == nil {
		return
	}
	changed, err := k.cpus.Release(uid)
	if err != nil {
		k.log.Warn("releasing CPUs of pod failed", "err", err)
	}
	if changed {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		k.cpuSetUpdater.updateAll(ctx)
	}
}

// exclusiveCPUs returns the IDs of a container's exclusive CPUs, or nil.
func (k *Kubelet) exclusiveCPUs(pod types.UID, container string) []int64 {
	if k.cpus == nil {
		return nil
	}
	set, own := k.cpus.Get(pod, container)
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
