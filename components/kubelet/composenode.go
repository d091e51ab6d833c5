package kubelet

import (
	"path/filepath"
	"strings"
	"time"

	"k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/node/eviction"
	"hyperkube/components/kubelet/node/hostcgroups"
	"hyperkube/components/kubelet/node/housekeeping"
	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/components/kubelet/node/pressure"
	"hyperkube/components/kubelet/node/shutdown"
	"hyperkube/components/kubelet/node/stats"
	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/podlogs"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/pod/localpath"
)

// nodeParts are the parts of the kubelet that manage the node as a whole, such as its status and eviction.
type nodeParts struct {
	object      *nodestatus.Object
	status      *nodestatus.Manager
	readiness   nodestatus.Readiness
	cgroups     *hostcgroups.Host
	fileSystems *stats.FileSystems
	stats       *stats.Provider
	collector   *images.Collector
	eviction    *eviction.Manager
	shutdown    *shutdown.Manager // nil if graceful node shutdown is disabled
	housekeeper *housekeeping.Housekeeper
}

// newNodeParts creates the parts that manage the node. The status comes last, because the others contribute to it.
// object caches the Node, whose status the parts update. limits configures the cgroups of pods.
func (k *Kubelet) newNodeParts(object *nodestatus.Object, limits pods.Limits) nodeParts {
	cfg := k.cfg
	rotation := podlogs.Rotation{MaxSize: cfg.Logs.MaxSize, MaxFiles: cfg.Logs.MaxFiles}
	garbage := pods.NewGarbageCollector(k.pods.registry, k.logs(), cfg.Containers.DeadContainers)
	n := nodeParts{object: object, cgroups: hostcgroups.New(k.cgroupConfig(limits)), shutdown: k.newShutdown(object)}
	n.collector = &images.Collector{
		CRI: k.cri, High: cfg.Images.GCHigh, Low: cfg.Images.GCLow, MinAge: cfg.Images.MinAge, MaxAge: cfg.Images.MaxAge,
		Log: k.log, Path: cfg.Layout.Data, Records: k.pods.puller.Records, Metrics: &k.metrics.Images,
	}
	n.housekeeper = &housekeeping.Housekeeper{
		Containers: garbage, Images: n.collector, Records: k.pods.puller.Records, ImageService: k.cri.Images,
		Interval: cfg.Logs.Interval, Rotation: rotation, PodsKnown: k.pods.synced.Known, Warn: k.events.NodeWarning, Log: k.log,
	}
	// This project's runtime keeps all files in the node's data directory.
	var imageService runtimeapi.ImageServiceClient
	if strings.TrimPrefix(cfg.Runtime.Endpoint, "unix://") != cfg.Layout.RuntimeSocket() {
		imageService = k.cri.Images
	}
	n.fileSystems = stats.NewFileSystems(cfg.Layout.Kubelet, cfg.Layout.Data, imageService)
	n.stats = k.newStats(n.fileSystems)
	n.eviction = pressure.New(pressure.Config{
		NodeName: cfg.NodeName, Root: cfg.Layout.Kubelet, Thresholds: cfg.Eviction.Thresholds(), Transition: cfg.Eviction.Transition, MaxGrace: cfg.Eviction.MaxGrace,
		StorageLimits: !cfg.Eviction.NoStorageLimits, Rotation: rotation,
		Cgroups: k.cgroups, Names: k.cgroupNames(), PodsLimited: cfg.Reserved.Enforces(config.EnforcePods),
		CRI: k.cri, Pods: k.pods.registry, Garbage: garbage, Images: n.collector, Stats: n.stats, FileSystems: n.fileSystems,
		Changed: object.Changed, Events: k.events, Log: k.log,
	})
	n.readiness = nodestatus.Readiness{Pods: k.pods.registry, Shutdown: n.shutdown, ServicesReady: k.deps.ServicesReady, Changed: object.Changed}
	n.status = k.newStatus(n)
	return n
}

// newStatus creates the manager that registers the node and reports its status and lease.
func (k *Kubelet) newStatus(n nodeParts) *nodestatus.Manager {
	cfg := k.cfg
	return nodestatus.New(nodestatus.Config{
		Name: cfg.NodeName, Object: n.object, Kube: k.kube, CRI: k.cri, Events: k.events, PodCIDR: cfg.Node.PodCIDR, Log: k.log,
		Registration: nodestatus.Registration{
			Enabled: !cfg.Node.NoRegister, Labels: cfg.Node.Labels, Annotations: map[string]string{localpath.Annotation: cfg.Layout.Volumes()},
			Taints: cfg.Node.Taints, Unschedulable: cfg.Node.Unschedulable, ProviderID: cfg.Node.ProviderID, CloudProvider: cfg.Node.CloudProvider, IsReinstalled: k.resources.IsReinstalled,
		},
		Status: nodestatus.Status{
			IPs: k.reportedAddresses(), Port: int32(cfg.Server.Port), Machine: k.machine,
			Capacity: cfg.Capacity(k.machine), Allocatable: k.allocatable(), Devices: k.resources.Capacity,
			Pressure: func() nodestatus.Pressure { return pressure.Conditions(n.eviction) }, NotReadyReasons: n.readiness.Reasons,
			VolumesInUse: func() []v1.UniqueVolumeName { return append(k.pods.csi.VolumesInUse(), k.pods.iscsi.VolumesInUse()...) },
			MaxImages:    int(*cfg.Node.MaxImages),
		},
		Periods: nodestatus.Periods{Lease: cfg.Node.Lease, Renew: cfg.Node.Lease / 4, Update: cfg.Node.Update, Report: cfg.Node.Report},
		NodeChanged: func() {
			k.pods.csi.Observe()
			k.pods.iscsi.Observe()
		},
		Started: func(asked, registered, ready time.Time) {
			k.metrics.Node.NodeStarted(telemetry.Startup{Boot: nodestatus.BootTime(), Kubelet: k.started, RegistrationStarted: asked, Registered: registered, Ready: ready})
		},
	})
}

// reportedAddresses returns a function that returns the addresses with which the kubelet reports the Node. With an external
// cloud provider these are only the configured ones, because the cloud controller manager knows the others.
func (k *Kubelet) reportedAddresses() func() []string {
	if k.cfg.Node.CloudProvider.IsExternal() && len(k.cfg.Node.IPs) == 0 {
		return func() []string { return nil }
	}
	return addresses(k.ips)
}

// newStats creates the provider of the statistics of pods and the node that the HTTPS server serves.
func (k *Kubelet) newStats(fs *stats.FileSystems) *stats.Provider {
	provider := &stats.Provider{
		CRI: k.cri, NodeName: k.cfg.NodeName, Root: k.cfg.Layout.Kubelet, Logs: k.cfg.Layout.PodLogs, Images: fs.ImagePath,
		RuntimePID: func() (int, error) { return cri.PID(k.cfg.Runtime.Endpoint) },
		Pods:       k.pods.registry.Pods, Boot: time.Now(), PodInterfacePrefix: k.cfg.Layout.LinkPrefix + "v",
	}
	if k.cgroups != nil {
		names := k.cgroupNames()
		provider.PodsCgroup = func() (cgroup.Stats, error) { return k.cgroups.Stats(names.OfClass(v1.PodQOSGuaranteed)) }
		provider.Pressures = func() cgroup.Pressures { return k.cgroups.Pressures("/") }
	}
	return provider
}

// newShutdown creates the manager of graceful node shutdowns. It returns nil if graceful shutdown
// is disabled and there is no socket for the stop job.
func (k *Kubelet) newShutdown(object *nodestatus.Object) *shutdown.Manager {
	if len(k.cfg.Machine.Shutdown) == 0 && k.cfg.Machine.StopSocket == "" {
		return nil
	}
	return shutdown.New(shutdown.Config{
		Periods: k.cfg.Machine.Shutdown, StopSocket: k.cfg.Machine.StopSocket, LogindConf: "/etc/systemd/logind.conf.d",
		Recorded: func(path string) error {
			return k.deps.Journal.Record(hostjournal.Change{Kind: hostjournal.Dir, Name: path})
		},
		Pods: k.pods.registry.Active, Terminate: shutdown.Terminator(k.pods.registry), Suspend: shutdown.Suspender(k.pods.registry), Changed: object.Changed,
		Event: k.events.NodeNormal,
		State: filepath.Join(k.cfg.Layout.Kubelet, "graceful_node_shutdown_state"), Log: k.log,
	})
}

// cgroupConfig returns the configuration of the cgroups of the node: the parents of pods and those of
// reserved resources.
func (k *Kubelet) cgroupConfig(limits pods.Limits) hostcgroups.Config {
	cfg, reserved := k.cfg, k.cfg.Reserved
	groups := hostcgroups.Config{
		Pods: k.cgroups, Names: k.cgroupNames(), Kubelet: cfg.Cgroups.Kubelet, System: cfg.Cgroups.System, RuntimeEndpoint: cfg.Runtime.Endpoint,
		CPUs: k.machine.CPUs, EnforcePods: reserved.Enforces(config.EnforcePods), PodsMemoryLimit: cfg.PodsMemoryLimit(k.machine),
		MemoryQoS: limits.MemoryQoS, TieredMemory: limits.Tiered, OOMScore: *cfg.Machine.OOMScore, Journal: k.deps.Journal, Log: k.log,
	}
	for _, r := range []hostcgroups.Reservation{
		{Name: config.EnforceKube, Cgroup: reserved.KubeCgroup, Resources: reserved.Kube},
		{Name: config.EnforceSystem, Cgroup: reserved.SystemCgroup, Resources: reserved.System},
		{Name: config.EnforceKubeCPU, Cgroup: reserved.KubeCgroup, Resources: reserved.Kube, OnlyCPU: true},
		{Name: config.EnforceSystemCPU, Cgroup: reserved.SystemCgroup, Resources: reserved.System, OnlyCPU: true},
	} {
		if reserved.Enforces(r.Name) {
			groups.Reserved = append(groups.Reserved, r)
		}
	}
	return groups
}
