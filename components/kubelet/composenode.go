package kubelet

import (
	"context"
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

// nodeParts are the parts that manage the node as a whole.
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

// newNodeParts creates the parts of the node. The status comes last, because the others contribute to it.
func (k *Kubelet) newNodeParts(object *nodestatus.Object) nodeParts {
	cfg := k.cfg
	rotation := podlogs.Rotation{MaxSize: cfg.Logs.MaxSize, MaxFiles: cfg.Logs.MaxFiles}
	garbage := pods.NewGarbageCollector(k.pods.registry, k.logs(), cfg.Containers.DeadContainers)
	n := nodeParts{object: object, cgroups: hostcgroups.New(k.cgroupConfig()), shutdown: k.newShutdown(object)}
	n.collector = &images.Collector{
		CRI: k.cri, High: cfg.Images.GCHigh, Low: cfg.Images.GCLow, MinAge: cfg.Images.MinAge, MaxAge: cfg.Images.MaxAge,
		Log: k.log, Path: cfg.Layout.Data, Records: k.pods.puller.Records, Metrics: k.metrics,
	}
	n.housekeeper = &housekeeping.Housekeeper{
		Containers: garbage, Images: n.collector, Records: k.pods.puller.Records, ImageService: k.cri.Images,
		Interval: cfg.Logs.Interval, Rotation: rotation, PodsKnown: k.pods.synced.Known, Warn: k.events.NodeWarning, Log: k.log,
	}
	n.fileSystems = k.newFileSystems()
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

// newStatus creates the manager of the Node object.
func (k *Kubelet) newStatus(n nodeParts) *nodestatus.Manager {
	cfg := k.cfg
	return nodestatus.New(nodestatus.Config{
		Name: cfg.NodeName, Object: n.object, Kube: k.kube, CRI: k.cri, Events: k.events, Log: k.log,
		Register: !cfg.Node.NoRegister, Labels: cfg.Node.Labels, Annotations: map[string]string{localpath.Annotation: cfg.Layout.Volumes()}, Taints: cfg.Node.Taints, Unschedulable: cfg.Node.Unschedulable,
		IPs: k.nodeIPs, ProviderID: cfg.Node.ProviderID, Port: int32(cfg.Server.Port), Machine: k.machine,
		Capacity: cfg.Capacity(k.machine), Allocatable: k.allocatable(), Devices: k.resources.Capacity, IsReinstalled: k.resources.IsReinstalled,
		Pressure: func() nodestatus.Pressure { return pressure.Conditions(n.eviction) }, NotReadyReasons: n.readiness.Reasons,
		PodCIDR: cfg.Node.PodCIDR, Lease: cfg.Node.Lease, Renew: cfg.Node.Lease / 4, Update: cfg.Node.Update, Report: cfg.Node.Report, MaxImages: int(*cfg.Node.MaxImages),
		VolumesInUse: func() []v1.UniqueVolumeName { return append(k.pods.csi.VolumesInUse(), k.pods.iscsi.VolumesInUse()...) },
		NodeChanged: func() {
			k.pods.csi.Observe()
			k.pods.iscsi.Observe()
		},
		Started: func(asked, registered, ready time.Time) {
			k.metrics.NodeStarted(telemetry.Startup{Boot: nodestatus.BootTime(), Kubelet: k.started, RegistrationStarted: asked, Registered: registered, Ready: ready})
		},
	})
}

// newFileSystems returns the file systems of the node.
func (k *Kubelet) newFileSystems() *stats.FileSystems {
	var info func(context.Context) (*runtimeapi.ImageFsInfoResponse, error)
	if strings.TrimPrefix(k.cfg.Runtime.Endpoint, "unix://") != k.cfg.Layout.RuntimeSocket() {
		info = func(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
			return k.cri.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
		}
	}
	return stats.NewFileSystems(k.cfg.Layout.Kubelet, k.cfg.Layout.Data, info)
}

// newStats creates the provider of pod and node statistics.
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
// is disabled.
func (k *Kubelet) newShutdown(object *nodestatus.Object) *shutdown.Manager {
	if len(k.cfg.Machine.Shutdown) == 0 {
		return nil
	}
	return shutdown.New(shutdown.Config{
		Periods: k.cfg.Machine.Shutdown, LogindConf: "/etc/systemd/logind.conf.d",
		Recorded: func(path string) error {
			return k.deps.Journal.Record(hostjournal.Change{Kind: hostjournal.Dir, Name: path})
		},
		Pods: k.pods.registry.Active, Terminate: k.terminateForShutdown, Changed: object.Changed,
		Event: k.events.NodeNormal,
		State: filepath.Join(k.cfg.Layout.Kubelet, "graceful_node_shutdown_state"), Log: k.log,
	})
}

// terminateForShutdown terminates a pod because of a node shutdown.
func (k *Kubelet) terminateForShutdown(pod *v1.Pod, grace int64) <-chan struct{} {
	k.pods.registry.Terminate(pod.UID, &pods.Verdict{
		Reason: shutdown.Reason, Message: shutdown.Message, Grace: &grace,
		Conditions: []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: shutdown.Message,
		}},
	})
	return k.pods.registry.Cleaned(pod.UID)
}

// cgroupConfig returns the configuration of the node's cgroups.
func (k *Kubelet) cgroupConfig() hostcgroups.Config {
	cfg, reserved := k.cfg, k.cfg.Reserved
	qos, tiered := k.memoryQoS()
	groups := hostcgroups.Config{
		Pods: k.cgroups, Names: k.cgroupNames(), Kubelet: cfg.Cgroups.Kubelet, System: cfg.Cgroups.System, RuntimeEndpoint: cfg.Runtime.Endpoint,
		CPUs: k.machine.CPUs, EnforcePods: reserved.Enforces(config.EnforcePods), PodsMemoryLimit: cfg.PodsMemoryLimit(k.machine),
		MemoryQoS: qos, TieredMemory: tiered, OOMScore: *cfg.Machine.OOMScore, Journal: k.deps.Journal, Log: k.log,
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

// detector returns the detector of the runtime's properties.
func (k *Kubelet) detector() hostcgroups.Detector {
	return hostcgroups.Detector{Runtime: k.cri.Runtime, Platform: k.pods.platform, Systemd: k.cfg.Cgroups.Systemd, LosingSupport: k.metrics.LosingSupport}
}

// prepareCgroups creates the cgroups that pods share.
func (k *Kubelet) prepareCgroups() error {
	if err := k.node.cgroups.Prepare(); err != nil {
		return err
	}
	if k.kube != nil && k.cgroups != nil && k.cfg.Reserved.Enforces(config.EnforcePods) {
		k.events.NodeNormal("NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
	}
	return nil
}
