// Package resources allocates the devices, CPUs and memory of the node to containers. Manager combines the
// managers of the single resources, and aligns them by NUMA node.
package resources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/resources/cpumanager"
	"hyperkube/components/kubelet/resources/devicemanager"
	"hyperkube/components/kubelet/resources/dra"
	"hyperkube/components/kubelet/resources/memorymanager"
	"hyperkube/components/kubelet/resources/numa"
	"hyperkube/components/kubelet/resources/topology"
	"hyperkube/components/kubelet/telemetry"
)

// Pods lists and wakes the pods of the node. Its methods must be safe for concurrent use.
type Pods interface {
	// Active returns the pods that have not terminated.
	Active() []*v1.Pod
	// Changed makes the worker of a pod update the pod's status.
	Changed(uid types.UID)
	// Cleaned returns a channel that is closed when no process of a pod runs and its volumes are removed.
	Cleaned(uid types.UID) <-chan struct{}
}

// Node is the status of the Node. Its methods must be safe for concurrent use.
type Node interface {
	// Changed requests an update of the status. It must not block.
	Changed()
}

// Config is the configuration of a Manager. All fields are required unless their comment says otherwise.
type Config struct {
	// Root is the kubelet's root directory.
	Root     string
	NodeName string
	// Kube may be nil. Then no claims are prepared.
	Kube    kubernetes.Interface
	Runtime ContainerUpdater
	Pods    Pods
	Node    Node
	// PodsKnown reports whether Pods returns all pods of the node. Until then resources of unknown pods are
	// not freed.
	PodsKnown func() bool
	// Guaranteed reports whether a pod is of the QoS class Guaranteed.
	Guaranteed func(*v1.Pod) bool

	CPUs     CPUPolicy
	Memory   MemoryPolicy
	Topology TopologyPolicy

	Metrics Metrics
	Log     *slog.Logger
}

// Metrics are the metrics of device plugins, of ResourceClaims, and of the allocation of CPUs and memory. Each may
// be nil.
type Metrics struct {
	Devices    *telemetry.Devices
	Claims     *telemetry.Claims
	Allocation *telemetry.Allocation
}

// CPUPolicy configures the CPU manager: whether containers can get exclusive CPUs, the policy options, and the
// reserved CPUs.
type CPUPolicy struct {
	// Static allocates exclusive CPUs. Without it the other fields have no effect.
	Static bool
	// StrictReservation, FullPCPUsOnly, AlignByUncoreCache and DistributeAcrossNUMA are the policy options
	// strict-cpu-reservation, full-pcpus-only, prefer-align-cpus-by-uncorecache and
	// distribute-cpus-across-numa.
	StrictReservation, FullPCPUsOnly, AlignByUncoreCache, DistributeAcrossNUMA bool
	// Reserved are CPUs that are never allocated exclusively. If it is empty, ReservedAmount is rounded up
	// to whole CPUs.
	Reserved       cpuset.CPUSet
	ReservedAmount resource.Quantity
}

// MemoryPolicy configures the memory manager: whether containers get memory of single NUMA nodes, and the memory
// reserved on each node.
type MemoryPolicy struct {
	// Static allocates memory of NUMA nodes.
	Static bool
	// Capacity is the machine's memory in bytes, for machines without NUMA nodes.
	Capacity int64
	// Reserved are the reserved bytes of memory and huge pages by NUMA node. Their sum must equal
	// Unallocatable.
	Reserved      map[int]map[v1.ResourceName]int64
	Unallocatable v1.ResourceList
}

// TopologyPolicy configures the topology manager. The values are those of KubeletConfiguration.
type TopologyPolicy struct {
	Policy, Scope string
	Options       map[string]string
}

// Manager allocates devices, CPUs and memory of the node to containers, and passes them to the runtime. It is
// the ResourceManager of the pod workers. Its methods are safe for concurrent use.
type Manager struct {
	log      *slog.Logger
	node     Node
	pods     Pods
	devices  *devicemanager.Manager
	claims   *dra.Manager
	cpus     *cpumanager.Manager    // nil without the static policy
	cpuSets  *cpuSetUpdater         // nil if cpus is nil
	memory   *memorymanager.Manager // nil without the Static policy
	topology *topology.Manager
}

// New returns a Manager with the allocations in the state files of the root directory. It returns an error if
// a state file does not match the configuration or the machine.
func New(cfg Config) (*Manager, error) {
	machine, err := numa.Read("/sys/devices/system/node")
	if errors.Is(err, os.ErrNotExist) {
		err = nil
		machine = numa.Flat(cpuset.CPUSet{}, map[v1.ResourceName]int64{v1.ResourceMemory: cfg.Memory.Capacity})
	}
	if err != nil {
		return nil, err
	}
	m := &Manager{log: cfg.Log, node: cfg.Node, pods: cfg.Pods}
	if m.devices, err = devicemanager.New(devicemanager.Config{
		Dir: filepath.Join(cfg.Root, "device-plugins"), Nodes: machine.All(), Active: cfg.Pods.Active, Known: cfg.PodsKnown,
		Changed: m.devicesChanged, Log: cfg.Log, Metrics: cfg.Metrics.Devices,
	}); err != nil {
		return nil, err
	}
	if m.claims, err = dra.New(dra.Config{Root: cfg.Root, NodeName: cfg.NodeName, Kube: cfg.Kube, Changed: m.devicesChanged, Log: cfg.Log, Metrics: cfg.Metrics.Claims}); err != nil {
		return nil, err
	}
	providers := []topology.Provider{m.devices}
	if m.cpus, err = newCPUs(cfg, machine); err != nil {
		return nil, err
	}
	if m.cpus != nil {
		providers = append(providers, m.cpus)
		m.cpuSets = newCPUSetUpdater(cfg.Runtime, m.cpus.Get, cfg.Log)
	}
	if m.memory, err = newMemory(cfg, machine); err != nil {
		return nil, err
	}
	if m.memory != nil {
		providers = append(providers, m.memory)
	}
	m.topology, err = topology.New(topology.Config{
		Policy: cfg.Topology.Policy, Scope: cfg.Topology.Scope, Options: cfg.Topology.Options, Machine: machine, Providers: providers, Metrics: cfg.Metrics.Allocation,
	})
	return m, err
}

// newCPUs returns the CPU manager, or nil without the static policy. Without that policy, a state file with
// allocations is an error, because they would never be released.
func newCPUs(cfg Config, nodes numa.Machine) (*cpumanager.Manager, error) {
	file := filepath.Join(cfg.Root, "cpu_manager_state")
	if !cfg.CPUs.Static {
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
	reserved := cfg.CPUs.Reserved
	if reserved.IsEmpty() {
		n := int((cfg.CPUs.ReservedAmount.MilliValue() + 999) / 1000)
		if n > len(machine) {
			return nil, fmt.Errorf("%d reserved CPUs exceed the number of CPUs", n)
		}
		reserved = machine.Choose(machine.All(), n, false)
	}
	return cpumanager.New(cpumanager.Config{
		Machine: machine, Reserved: reserved, StrictReservation: cfg.CPUs.StrictReservation, FullPCPUsOnly: cfg.CPUs.FullPCPUsOnly, AlignByUncoreCache: cfg.CPUs.AlignByUncoreCache, DistributeAcrossNUMA: cfg.CPUs.DistributeAcrossNUMA,
		File:       file,
		Guaranteed: cfg.Guaranteed, Active: cfg.Pods.Active, Known: cfg.PodsKnown, Log: cfg.Log, Metrics: cfg.Metrics.Allocation,
	})
}

// newMemory returns the memory manager, or nil without the Static policy. Without that policy, a state file
// with allocations is an error, because they would never be released.
func newMemory(cfg Config, machine numa.Machine) (*memorymanager.Manager, error) {
	file := filepath.Join(cfg.Root, "memory_manager_state")
	if !cfg.Memory.Static {
		some, err := memorymanager.HasAllocations(file)
		if err == nil && some {
			err = fmt.Errorf(`could not restore state from checkpoint: [memorymanager] configured policy "None" differs from state checkpoint policy "Static", please drain this node and delete the memory manager checkpoint file %q before restarting Kubelet`, file)
		}
		return nil, err
	}
	all := map[v1.ResourceName]int64{}
	for name, q := range cfg.Memory.Unallocatable {
		if name == v1.ResourceMemory || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			all[name] = q.Value()
		}
	}
	reserved, err := memorymanager.Reserve(machine, cfg.Memory.Reserved, all)
	if err != nil {
		return nil, err
	}
	return memorymanager.New(memorymanager.Config{
		Machine: machine, Reserved: reserved, File: file,
		Guaranteed: cfg.Guaranteed, Active: cfg.Pods.Active, Known: cfg.PodsKnown, Log: cfg.Log, Metrics: cfg.Metrics.Allocation,
	})
}

// Run accepts device plugins and DRA drivers, and retries failed updates of CPU sets, until ctx is done or
// one of these tasks fails.
func (m *Manager) Run(ctx context.Context) error {
	run := map[string]func(context.Context) error{"device manager": m.devices.Run, "resource claim manager": m.claims.Run}
	if m.cpuSets != nil {
		run["CPU set reconciler"] = m.cpuSets.Run
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, len(run))
	var wait sync.WaitGroup
	for name, f := range run {
		wait.Go(func() {
			if err := f(ctx); err != nil {
				failed <- fmt.Errorf("%s: %w", name, err)
				cancel()
			}
		})
	}
	wait.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// devicesChanged requests an update of the status of the Node and of the pods in list, which use devices of a
// plugin or driver whose devices have changed.
func (m *Manager) devicesChanged(list []types.UID) {
	m.node.Changed()
	for _, uid := range list {
		m.pods.Changed(uid)
	}
}

// AdmissionError is the error of Admit, with the reason and the message for the status of the rejected pod.
type AdmissionError struct{ Reason, Message string }

// Error returns the message.
func (e *AdmissionError) Error() string { return e.Message }

// Admit allocates devices, CPUs and memory to a new pod, aligned by NUMA node as the topology policy
// requires. If it allocates exclusive CPUs, other running containers are restricted to the remaining ones. An
// error is an *AdmissionError; the pod must then be rejected.
func (m *Manager) Admit(ctx context.Context, pod *v1.Pod) error {
	var before cpuset.CPUSet
	if m.cpus != nil {
		before = m.cpus.Shared()
	}
	err := m.topology.Admit(ctx, pod)
	var align *cpumanager.AlignmentError
	switch {
	case errors.Is(err, topology.ErrAffinity):
		return &AdmissionError{Reason: "TopologyAffinityError", Message: err.Error()}
	case errors.As(err, &align):
		return &AdmissionError{Reason: "SMTAlignmentError", Message: err.Error()}
	case err != nil:
		return &AdmissionError{Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
	}
	if m.cpus != nil && !before.Equals(m.cpus.Shared()) {
		m.cpuSets.updateAll(ctx)
	}
	return nil
}

// PrepareContainer adds the devices, CPUs and NUMA nodes that are allocated to a container to its
// configuration cfg. It returns an error if a device plugin fails; the container is then not created.
func (m *Manager) PrepareContainer(ctx context.Context, pod *v1.Pod, c *v1.Container, cfg *runtimeapi.ContainerConfig) error {
	grants, err := m.devices.Grants(ctx, pod, c)
	if err != nil {
		return err
	}
	var vars []*runtimeapi.KeyValue
	for _, name := range slices.Sorted(maps.Keys(grants)) {
		r := grants[name].Response
		for _, key := range slices.Sorted(maps.Keys(r.Envs)) {
			vars = append(vars, &runtimeapi.KeyValue{Key: key, Value: []byte(r.Envs[key])})
		}
		for _, mount := range r.Mounts {
			cfg.Mounts = append(cfg.Mounts, &runtimeapi.Mount{ContainerPath: mount.ContainerPath, HostPath: mount.HostPath, Readonly: mount.ReadOnly})
		}
		for _, d := range r.Devices {
			cfg.Devices = append(cfg.Devices, &runtimeapi.Device{ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: d.Permissions})
		}
		maps.Copy(cfg.Annotations, r.Annotations)
		for _, d := range r.CdiDevices {
			cfg.CDIDevices = append(cfg.CDIDevices, &runtimeapi.CDIDevice{Name: d.Name})
		}
	}
	for _, name := range m.claims.CDI(pod, c) {
		cfg.CDIDevices = append(cfg.CDIDevices, &runtimeapi.CDIDevice{Name: name})
	}
	if m.cpus != nil {
		set, _ := m.cpus.Get(pod.UID, c.Name)
		cfg.Linux.Resources.CpusetCpus = set.String()
	}
	if m.memory != nil {
		if nodes := m.memory.Nodes(pod.UID, c.Name); nodes != 0 {
			cfg.Linux.Resources.CpusetMems = nodes.String()
		}
	}
	// Variables of the pod come last and take precedence.
	cfg.Envs = append(vars, cfg.Envs...)
	return nil
}

// ContainerStarted must be called after the container id was started with the configuration cfg. It updates the
// CPU set if that has changed since cfg was created. Without the static CPU policy it does nothing.
func (m *Manager) ContainerStarted(ctx context.Context, pod *v1.Pod, container, id string, cfg *runtimeapi.ContainerConfig) {
	if m.cpuSets != nil {
		m.cpuSets.containerStarted(ctx, pod, container, id, cfg)
	}
}

// DeviceHealth returns the health of a container's devices, of device plugins and claims, for the pod's
// status.
func (m *Manager) DeviceHealth(pod *v1.Pod, container string) []v1.ResourceStatus {
	return append(m.devices.Health(pod.UID, container), m.claims.Health(pod, container)...)
}

// PodTerminated frees the devices, CPUs and memory of a pod of which no process runs any more, and updates the
// CPU sets of the other containers if the shared CPUs have changed. Failures are logged. It may be called
// again.
func (m *Manager) PodTerminated(uid types.UID) {
	if err := m.devices.Release(uid); err != nil {
		m.log.Warn("writing file with allocated devices after the termination of a pod failed; its devices are free, but a restarted kubelet treats them as allocated until it has received all pods, writing the file again at the next allocation or release", "podUID", uid, "err", err)
	}
	if m.memory != nil {
		if err := m.memory.Release(uid); err != nil {
			m.log.Warn("writing memory manager state file after the termination of a pod failed; its memory is free, but a restarted kubelet treats it as allocated until it has received all pods, writing the file again at the next allocation or release", "podUID", uid, "err", err)
		}
	}
	if m.cpus == nil {
		return
	}
	changed, err := m.cpus.Release(uid)
	if err != nil {
		m.log.Warn("writing CPU manager state file after the termination of a pod failed; its CPUs are free, but a restarted kubelet treats them as allocated until it has received all pods, writing the file again at the next allocation or release", "podUID", uid, "err", err)
	}
	if changed {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		m.cpuSets.updateAll(ctx)
	}
}

// UpdateCPUSets updates the CPU sets of all running containers, which an earlier kubelet may have started.
// Failures are retried by Run. Without the static CPU policy it does nothing.
func (m *Manager) UpdateCPUSets(ctx context.Context) {
	if m.cpuSets != nil {
		m.cpuSets.updateAll(ctx)
	}
}
