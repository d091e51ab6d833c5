package kubelet

import (
	"net/netip"
	"path/filepath"
	"slices"

	"k8s.io/api/core/v1"

	"hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/node/events"
	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/components/kubelet/pluginwatch"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/resources"
	"hyperkube/components/kubelet/server/podsapi"
)

// compose creates the kubelet's parts in the order of their dependencies. The registry of pods and the
// Node object come first: the parts that the pod workers and the node status depend on use them to list
// and terminate pods, and to request updates of the status. The workers and the status come after these
// parts.
func (k *Kubelet) compose() error {
	k.events = events.New(k.cfg.NodeName)
	object := nodestatus.NewObject()
	var err error
	if k.pods, err = k.newPodParts(object); err != nil {
		return err
	}
	if k.resources, err = k.newResources(object); err != nil {
		return err
	}
	limits := k.cgroupLimits()
	k.node = k.newNodeParts(object, limits)
	if k.cfg.Gates.Enabled(config.GatePodsAPI, true) {
		if k.podsAPI, err = podsapi.New(podsapi.Config{Pods: k.pods.registry.Pods, Known: k.pods.synced.Known, Count: &k.metrics.Sockets, Log: k.log}); err != nil {
			return err
		}
	}
	if k.workers, err = k.newWorkers(limits); err != nil {
		return err
	}
	// The sources start pods, and the plugins volumes and devices of pods, so they come last.
	k.sources = k.newSources()
	k.plugins = &pluginwatch.Watcher{
		Dir: filepath.Join(k.cfg.Layout.Kubelet, "plugins_registry"), Alias: k.cfg.Layout.KubeletAlias(), Log: k.log,
		Handlers: map[string]pluginwatch.Handler{"CSIPlugin": k.pods.csi, "DRAPlugin": k.resources.Claims()},
	}
	return nil
}

// addresses returns a function that returns ips as strings, as the manager of the serving certificate requires. The
// function returns a new slice on each call.
func addresses(ips []netip.Addr) func() []string {
	out := make([]string, len(ips))
	for i, ip := range ips {
		out[i] = ip.String()
	}
	return func() []string { return slices.Clone(out) }
}

// allocatable returns the allocatable resources of the node: its capacity without reserved resources and the
// hard eviction thresholds.
func (k *Kubelet) allocatable() v1.ResourceList {
	return nodestatus.Allocatable(k.cfg.Capacity(k.machine), k.cfg.Unallocatable(k.machine))
}

// newResources creates the manager that allocates devices, CPUs and memory to containers.
func (k *Kubelet) newResources(object *nodestatus.Object) (*resources.Manager, error) {
	cpus, memory, topology := k.cfg.Resources.CPUs, k.cfg.Resources.Memory, k.cfg.Resources.Topology
	return resources.New(resources.Config{
		Root: k.cfg.Layout.Kubelet, NodeName: k.cfg.NodeName, Kube: k.kube, Runtime: k.cri.Runtime,
		Pods: k.pods.registry, Node: object, PodsKnown: k.pods.synced.Known,
		Guaranteed: func(p *v1.Pod) bool { return pods.QOS(p) == v1.PodQOSGuaranteed },
		CPUs: resources.CPUPolicy{
			Static: cpus.Static, StrictReservation: cpus.Strict, FullPCPUsOnly: cpus.Whole, AlignByUncoreCache: cpus.ByCache, DistributeAcrossNUMA: cpus.Spread,
			Reserved: cpus.Reserved, ReservedAmount: k.cfg.Reserved.All[v1.ResourceCPU],
		},
		Memory: resources.MemoryPolicy{
			Static: memory.Static, Capacity: k.machine.MemoryBytes, Reserved: memory.Reserved, Unallocatable: k.cfg.Unallocatable(k.machine),
		},
		Topology: resources.TopologyPolicy{Policy: topology.Policy, Scope: topology.Scope, Options: topology.Options},
		Metrics:  resources.Metrics{Devices: &k.metrics.Devices, Claims: &k.metrics.Claims, Allocation: &k.metrics.Allocation}, Log: k.log,
	})
}
