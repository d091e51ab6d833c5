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

// compose creates the kubelet's parts in the order of their dependencies. The registry of pods comes
// first: the parts that the pod manager depends on use it to list and terminate pods. The manager
// comes last.
func (k *Kubelet) compose() error {
	capacity := k.cfg.Capacity(k.machine)
	allocatable := nodestatus.Allocatable(capacity, k.cfg.Unallocatable(k.machine))
	k.pods, k.platform = pods.NewRegistry(), &pods.Platform{}
	k.events = events.New(k.cfg.NodeName)
	recorder := k.events
	k.objects = objectcache.New(k.kube, k.log)
	k.tokens = tokens.New(k.kube)
	k.trust = trustbundles.New(k.kube, func() { k.pods.Refresh(trustbundles.Uses) })
	k.podCerts = &podcerts.Issuer{Kube: k.kube, Node: func() *v1.Node { return k.nodeStatus.Node() }, Warn: k.events.PodWarning}
	var err error
	if k.csi, err = k.newCSI(recorder); err != nil {
		return err
	}
	k.iscsi = k.newISCSI()
	k.nodeStatus = k.newNodeStatus(recorder, capacity, allocatable)
	puller := k.newPuller()
	logs := pods.Logs{Pods: k.cfg.Layout.PodLogs, Containers: k.cfg.Layout.ContainerLogs}
	k.garbage = pods.NewGarbageCollector(k.pods, logs, k.cfg.Containers.DeadContainers)
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
		k.mirrors = staticpod.NewMirrors(k.kube, k.nodeStatus.Node, k.pods.Changed, k.log)
	}
	if k.host, err = k.newHost(recorder, puller, logs, allocatable); err != nil {
		return err
	}
	k.manager = pods.NewManager(k.host)
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

// newHost returns the configuration of the pod manager.
func (k *Kubelet) newHost(recorder record.EventRecorder, puller *images.Puller, logs pods.Logs, allocatable v1.ResourceList) (pods.Config, error) {
	cfg := k.cfg
	providers, err := k.newProviders()
	if err != nil {
		return pods.Config{}, err
	}
	users := &usernamespaces.Allocator{Start: crc32.ChecksumIEEE([]byte(cfg.NodeName))}
	if users.Ranges, err = usernamespaces.Configured(context.Background(), cfg.Node.MaxPods); err != nil {
		return pods.Config{}, err
	}
	getAllocatable := func() v1.ResourceList { return allocatable }
	host := pods.Config{
		Log: k.log, Registry: k.pods, Platform: k.platform, CRI: k.cri, Kube: k.kube, Objects: k.objects,
		Metrics: k.metrics,
		Volumes: k.newVolumes(recorder, getAllocatable),
		Prober:  probe.New(k.execSync, "1.37"),
		Events:  recorder,
		Images:  pods.Images{Puller: puller, Providers: providers, DockerConfigs: pullcredentials.DockerConfigs(cfg.Layout.Kubelet)},
		Limits:  k.cgroupLimits(),
		Security: pods.Security{
			SeccompDefault: cfg.Containers.SeccompDefault, SeccompRoot: filepath.Join(cfg.Layout.Kubelet, "seccomp"),
			Sysctls: cfg.Containers.Sysctls, Users: users,
		},
		Node: pods.Node{
			DNS: dnsconf.Node{
				ClusterDNS: cfg.DNS.Servers, ClusterDomain: cfg.DNS.Domain, ResolvConf: cfg.DNS.ResolvConf, Addresses: k.nodeIPs,
				Warn: func(reason, message string) {
					recorder.Event(nodestatus.Reference(cfg.NodeName), v1.EventTypeWarning, reason, message)
				},
			},
			IPs: k.nodeIPs, Object: k.nodeStatus.Node, Allocatable: getAllocatable, Services: k.listServices,
		},
		Logs: logs,
		Collaborators: pods.Collaborators{
			Admitter: admitter{k}, Resources: resources{k}, Claims: k.claims, Network: podNetwork{k.nodeStatus},
		},
		CrashMax: cfg.Containers.CrashMax,
	}
	host.Prober.Metrics, host.Prober.HookMetrics = probe.NewMetrics(), k.metrics
	host.Tracer = k.traces.Tracer()
	if k.deps.Policies != nil {
		host.Policies = k.deps.Policies
	}
	if k.podsAPI != nil {
		host.Observer = k.podsAPI
	}
	if k.mirrors != nil {
		host.Mirror = k.mirrors
	}
	return host, nil
}

// podNetwork implements pods.Network.
type podNetwork struct{ node *nodestatus.Manager }

func (n podNetwork) NetworkProblem() string {
	problem := n.node.NetworkProblem()
	if problem != "" {
		// The problem may have been resolved since.
		n.node.Changed()
	}
	return problem
}

// cgroupLimits returns the configuration of the cgroup limits of pods, as far as the machine's
// cgroups support them.
func (k *Kubelet) cgroupLimits() pods.Limits {
	cfg := k.cfg
	limits := pods.Limits{
		Root: cfg.Layout.CgroupRoot, MemoryCapacity: k.machine.MemoryBytes,
		CPUQuota: !cfg.Containers.NoCPUQuota, CPUQuotaPeriod: cfg.Containers.CPUQuotaPeriod, Pids: cfg.Containers.PidsLimit,
		StaticCPUs: k.cpus != nil, StaticMemory: k.memory != nil,
	}
	if k.cpus != nil && cfg.Gates.Enabled(config.GateNoQuota, true) {
		limits.HasExclusiveCPUs = func(pod types.UID, container string) bool {
			_, own := k.cpus.Get(pod, container)
			return own
		}
	}
	if k.cgroups == nil {
		return limits
	}
	limits.Cgroups = timedCgroups{k.cgroups, k.metrics}
	k.metrics.CgroupVersion(1)
	// Without the controller the kernel cannot limit huge pages per pod.
	for _, size := range slices.Sorted(maps.Keys(k.machine.Hugepages)) {
		if k.machine.Hugepages[size] > 0 && slices.Contains(k.cgroups.Controllers(), "hugetlb") {
			limits.Hugepages = append(limits.Hugepages, size)
		}
	}
	if !k.cgroups.Unified() {
		return limits
	}
	k.metrics.CgroupVersion(2)
	limits.WholeOOMKill = !cfg.Containers.SingleOOMKill
	limits.MemoryQoS = cfg.Gates.Enabled(config.GateMemoryQoS, true)
	limits.Tiered = limits.MemoryQoS && cfg.Containers.TieredMemory
	if cfg.Containers.MemoryThrottling != nil && limits.MemoryQoS {
		limits.Throttling = *cfg.Containers.MemoryThrottling
	}
	limits.Swap = func() int64 { return 0 }
	if limits.LimitedSwap = cfg.Containers.LimitedSwap; limits.LimitedSwap {
		limits.Swap = func() int64 { return k.machine.SwapBytes }
	}
	return limits
}

// newStats creates the provider of pod and node statistics.
func (k *Kubelet) newStats() *stats.Provider {
	provider := &stats.Provider{
		CRI: k.cri, NodeName: k.cfg.NodeName, Root: k.cfg.Layout.Kubelet, Logs: k.cfg.Layout.PodLogs, Images: k.disks.imagePath,
		RuntimePID: k.runtimePID,
		Pods:       k.pods.Pods, Boot: time.Now(), PodInterfacePrefix: k.cfg.Layout.LinkPrefix + "v",
	}
	if k.cgroups != nil {
		provider.PodsCgroup = func() (cgroup.Stats, error) { return k.cgroups.Stats(k.kubepods()) }
		provider.Pressures = func() cgroup.Pressures { return k.cgroups.Pressures("/") }
	}
	return provider
}
