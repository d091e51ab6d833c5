package kubelet

import (
	"context"
	"hash/crc32"
	"maps"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/events"
	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/components/kubelet/node/stats"
	"hyperkube/components/kubelet/pod/dnsconf"
	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/podcerts"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/pod/probe"
	"hyperkube/components/kubelet/pod/pullcredentials"
	"hyperkube/components/kubelet/pod/staticpod"
	"hyperkube/components/kubelet/pod/tokens"
	"hyperkube/components/kubelet/pod/trustbundles"
	"hyperkube/components/kubelet/pod/usernamespaces"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/pod/localpath"
)

// compose creates the kubelet's parts in the order of their dependencies. The host, through which
// pods reach the other parts, is created in the middle; completeHost adds references to parts
// created after it.
func (k *Kubelet) compose() error {
	capacity := k.cfg.Capacity(k.machine)
	allocatable := nodestatus.Allocatable(capacity, k.cfg.Unallocatable(k.machine))
	k.events = events.New(k.cfg.NodeName)
	recorder := k.events
	k.objects = objectcache.New(k.kube, k.log)
	k.tokens = tokens.New(k.kube)
	k.trust = trustbundles.New(k.kube, func() { k.manager.Refresh(trustbundles.Uses) })
	k.podCerts = &podcerts.Issuer{Kube: k.kube, Node: func() *v1.Node { return k.nodeStatus.Node() }, Warn: k.events.PodWarning}
	var err error
	if k.csi, err = k.newCSI(recorder); err != nil {
		return err
	}
	k.iscsi = k.newISCSI()
	k.nodeStatus = k.newNodeStatus(recorder, capacity, allocatable)
	puller := k.newPuller()
	if k.host, err = k.newHost(recorder, puller, allocatable); err != nil {
		return err
	}
	k.manager = pods.NewManager(k.host)
	k.disks = k.newDisks()
	k.collector = &images.Collector{
		CRI: k.cri, High: k.cfg.Images.GCHigh, Low: k.cfg.Images.GCLow, MinAge: k.cfg.Images.MinAge, MaxAge: k.cfg.Images.MaxAge,
		Log: k.log, Path: k.cfg.Layout.Data, Records: puller.Records, Metrics: k.metrics,
	}
	k.stats = k.newStats()
	k.eviction = k.newEviction(recorder)
	k.shutdown = k.newShutdown(recorder)
	if err = k.newResourceManagers(); err != nil {
		return err
	}
	k.plugins = k.newPlugins()
	if k.kube != nil {
		k.mirrors = staticpod.NewMirrors(k.kube, k.nodeStatus.Node, k.manager.Changed, k.log)
	}
	k.completeHost()
	return nil
}

// newNodeStatus creates the manager of the Node object.
func (k *Kubelet) newNodeStatus(recorder record.EventRecorder, capacity, allocatable v1.ResourceList) *nodestatus.Manager {
	cfg := k.cfg
	return nodestatus.New(nodestatus.Config{
		Name: cfg.NodeName, Kube: k.kube, CRI: k.cri, Events: recorder, Log: k.log,
		Register: !cfg.Node.NoRegister, Labels: cfg.Node.Labels, Annotations: map[string]string{localpath.Annotation: cfg.Layout.Volumes()}, Taints: cfg.Node.Taints, Unschedulable: cfg.Node.Unschedulable,
		IPs: k.nodeIPs, ProviderID: cfg.Node.ProviderID, Port: int32(cfg.Server.Port), Machine: k.machine,
		Capacity: capacity, Allocatable: allocatable, Pressure: k.pressure, NotReadyReasons: k.notReadyReasons, Devices: k.deviceCapacity, IsReinstalled: func() bool { return k.devices.NoCheckpoint() }, PodCIDR: cfg.Node.PodCIDR,
		Lease: cfg.Node.Lease, Renew: cfg.Node.Lease / 4, Update: cfg.Node.Update, Report: cfg.Node.Report, MaxImages: int(*cfg.Node.MaxImages),
		VolumesInUse: k.volumesInUse, NodeChanged: k.nodeChanged, Started: k.nodeStarted,
	})
}

// newPuller creates the image puller.
func (k *Kubelet) newPuller() *images.Puller {
	cfg := k.cfg
	puller := images.NewPuller(k.cri.Images)
	puller.Metrics = k.metrics
	if cfg.Gates.Enabled(config.GatePulledImages, true) {
		puller.Records = &images.Records{Dir: filepath.Join(cfg.Layout.Kubelet, "image_manager"), Policy: cfg.Images.Verification, Allowed: cfg.Images.Allowlist, Metrics: k.metrics, Log: k.log}
	}
	puller.Limit(cfg.Images.ParallelPulls)
	puller.LimitRate(int(*cfg.Images.PullQPS), cfg.Images.PullBurst)
	return puller
}

// newVolumes creates the supported volume types.
func (k *Kubelet) newVolumes(recorder record.EventRecorder, allocatable func() v1.ResourceList) *volume.Set {
	layout := k.cfg.Layout
	hostPaths := volume.HostPath{Alias: layout.KubeletAlias()}
	local := volume.Local{Root: layout.Volumes(), Warn: k.events.PodWarning, WarnVolume: func(pv *v1.PersistentVolume, reason, message string) {
		recorder.Event(pv, v1.EventTypeWarning, reason, message)
	}}
	return &volume.Set{Root: layout.Kubelet, SELinux: volume.HostHasSELinux(), Metrics: k.metrics, Types: []volume.Type{
		volume.EmptyDir{Allocatable: allocatable},
		hostPaths,
		volume.ConfigMapVolume{Objects: k.objects},
		volume.SecretVolume{Objects: k.objects},
		volume.DownwardAPI{Allocatable: allocatable},
		volume.Projected{Objects: k.objects, Tokens: k.tokens, Allocatable: allocatable, Trust: k.trust, Certificates: k.podCerts},
		volume.Image{},
		volume.Claim{Claims: objectcache.Claims{Kube: k.kube}, Node: k.nodeStatus.Node, Types: []volume.PersistentType{hostPaths, local, volume.NFS{}, k.iscsi, k.csi}},
		volume.NFS{},
		k.iscsi,
		k.csi,
	}}
}

// newHost creates the pods.Host, except for the fields that completeHost sets.
func (k *Kubelet) newHost(recorder record.EventRecorder, puller *images.Puller, allocatable v1.ResourceList) (*pods.Host, error) {
	cfg := k.cfg
	providers, err := k.newProviders()
	if err != nil {
		return nil, err
	}
	getAllocatable := func() v1.ResourceList { return allocatable }
	host := &pods.Host{
		Log: k.log, NodeName: cfg.NodeName, CRI: k.cri, Kube: k.kube, Objects: k.objects,
		Metrics: k.metrics,
		Volumes: k.newVolumes(recorder, getAllocatable),
		Prober:  probe.New(k.execSync, "1.37"),
		Events:  recorder,
		Images:  pods.Images{Puller: puller, Providers: providers, DockerConfigs: pullcredentials.DockerConfigs(cfg.Layout.Kubelet)},
		Limits: pods.Limits{
			Root: cfg.Layout.CgroupRoot, MemoryCapacity: k.machine.MemoryBytes,
			CPUQuota: !cfg.Containers.NoCPUQuota, CPUQuotaPeriod: cfg.Containers.CPUQuotaPeriod, Pids: cfg.Containers.PidsLimit,
		},
		Security: pods.Security{
			SeccompDefault: cfg.Containers.SeccompDefault, SeccompRoot: filepath.Join(cfg.Layout.Kubelet, "seccomp"),
			Sysctls: cfg.Containers.Sysctls, AllowedUnsafeSysctls: cfg.Containers.AllowedUnsafeSysctls,
		},
		Hooks: pods.Hooks{Extend: k.extend, NetworkProblem: func() string {
			problem := k.nodeStatus.NetworkProblem()
			if problem != "" {
				// The problem may have been resolved since.
				k.nodeStatus.Changed()
			}
			return problem
		}},
		DNS: dnsconf.Node{
			ClusterDNS: cfg.DNS.Servers, ClusterDomain: cfg.DNS.Domain, ResolvConf: cfg.DNS.ResolvConf, Addresses: k.nodeIPs,
			Warn: func(reason, message string) { k.nodeEvent(v1.EventTypeWarning, reason, message) },
		},
		NodeIPs: k.nodeIPs, Node: k.nodeStatus.Node, Allocatable: getAllocatable,
		RuntimeName: "hyperkube", PodLogs: cfg.Layout.PodLogs, ContainerLogs: cfg.Layout.ContainerLogs,
		Services:       k.listServices,
		CrashMax:       cfg.Containers.CrashMax,
		DeadContainers: cfg.Containers.DeadContainers,
	}
	host.Prober.Metrics, host.Prober.HookMetrics = probe.NewMetrics(), k.metrics
	if host.Security.Users.Ranges, err = usernamespaces.Configured(context.Background(), cfg.Node.MaxPods); err != nil {
		return nil, err
	}
	host.Security.Users.Start = crc32.ChecksumIEEE([]byte(cfg.NodeName))
	host.Tracer = k.traces.Tracer()
	if k.deps.Policies != nil {
		host.Hooks.Network = k.deps.Policies.Expect
	}
	if k.cgroups != nil {
		k.configureCgroupLimits(host)
	}
	return host, nil
}

// configureCgroupLimits configures the cgroup limits of host as far as the machine's cgroups support them.
func (k *Kubelet) configureCgroupLimits(host *pods.Host) {
	cfg := k.cfg
	host.Limits.Cgroups = timedCgroups{k.cgroups, k.metrics}
	k.metrics.CgroupVersion(1)
	// Without the controller the kernel cannot limit huge pages per pod.
	for _, size := range slices.Sorted(maps.Keys(k.machine.Hugepages)) {
		if k.machine.Hugepages[size] > 0 && slices.Contains(k.cgroups.Controllers(), "hugetlb") {
			host.Limits.Hugepages = append(host.Limits.Hugepages, size)
		}
	}
	if !k.cgroups.Unified() {
		return
	}
	k.metrics.CgroupVersion(2)
	host.Limits.WholeOOMKill = !cfg.Containers.SingleOOMKill
	host.Limits.MemoryQoS = cfg.Gates.Enabled(config.GateMemoryQoS, true)
	host.Limits.Tiered = host.Limits.MemoryQoS && cfg.Containers.TieredMemory
	if cfg.Containers.MemoryThrottling != nil && host.Limits.MemoryQoS {
		host.Limits.Throttling = *cfg.Containers.MemoryThrottling
	}
	host.Limits.Swap = func() int64 { return 0 }
	if host.Limits.LimitedSwap = cfg.Containers.LimitedSwap; host.Limits.LimitedSwap {
		host.Limits.Swap = func() int64 { return k.machine.SwapBytes }
	}
}

// newStats creates the provider of pod and node statistics.
func (k *Kubelet) newStats() *stats.Provider {
	provider := &stats.Provider{
		CRI: k.cri, NodeName: k.cfg.NodeName, Root: k.cfg.Layout.Kubelet, Logs: k.cfg.Layout.PodLogs, Images: k.disks.imagePath,
		RuntimePID: k.runtimePID,
		Pods:       k.manager.Pods, Boot: time.Now(), PodInterfacePrefix: k.cfg.Layout.LinkPrefix + "v",
	}
	if k.cgroups != nil {
		provider.PodsCgroup = func() (cgroup.Stats, error) { return k.cgroups.Stats(k.kubepods()) }
		provider.Pressures = func() cgroup.Pressures { return k.cgroups.Pressures("/") }
	}
	return provider
}

// completeHost sets the fields of the host that refer to parts created after it.
func (k *Kubelet) completeHost() {
	k.host.Hooks.DeviceHealth = func(pod *v1.Pod, container string) []v1.ResourceStatus {
		return append(k.devices.Health(pod.UID, container), k.claims.Health(pod, container)...)
	}
	if k.cpus != nil && k.cfg.Gates.Enabled(config.GateNoQuota, true) {
		k.host.Limits.HasExclusiveCPUs = func(pod types.UID, container string) bool {
			_, own := k.cpus.Get(pod, container)
			return own
		}
	}
	k.host.Claims = k.claims
	k.host.Resizing.Preempt = k.preemptForResize
	k.host.Resizing.StaticCPUs, k.host.Resizing.StaticMemory = k.cpus != nil, k.memory != nil
	k.host.Hooks.Terminated = k.release
	if k.mirrors != nil {
		k.host.Mirror = k.mirrors
	}
}
