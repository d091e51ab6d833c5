package kubelet

import (
	"context"
	"hash/crc32"
	"maps"
	"path/filepath"
	"slices"

	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/node/admission"
	"hyperkube/components/kubelet/node/hostcgroups"
	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/components/kubelet/pod/dnsconf"
	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/podcerts"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/pod/podsource"
	"hyperkube/components/kubelet/pod/probe"
	"hyperkube/components/kubelet/pod/pullcredentials"
	"hyperkube/components/kubelet/pod/staticpod"
	"hyperkube/components/kubelet/pod/tokens"
	"hyperkube/components/kubelet/pod/trustbundles"
	"hyperkube/components/kubelet/pod/usernamespaces"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/components/kubelet/pod/volume/csi"
	"hyperkube/components/kubelet/pod/volume/iscsi"
	"hyperkube/components/kubelet/resources"
)

// podParts are the parts of the kubelet that provide what pods need, such as volumes and images, and those that let
// eviction, shutdown and the node status list and terminate pods.
type podParts struct {
	registry *pods.Registry
	platform *pods.Platform
	// synced is complete when all sources have delivered their pods.
	synced       *podsource.Sync
	services     *podsource.Services
	mirrors      *staticpod.Mirrors // nil without an API server
	objects      *objectcache.Store
	tokens       *tokens.Cache
	trust        *trustbundles.Watcher
	certificates *podcerts.Issuer
	csi          *csi.Plugin
	iscsi        *iscsi.Plugin
	volumes      *volume.Set
	puller       *images.Puller
	prober       *probe.Prober
	dns          dnsconf.Node
}

// cgroupNames returns the scheme by which the cgroups of pods are named.
func (k *Kubelet) cgroupNames() pods.CgroupNames {
	return pods.CgroupNames{Root: k.cfg.Layout.CgroupRoot, Platform: k.pods.platform}
}

// logs returns the configured directories: that of the log files of pods, and that of the links by which log
// collectors find the logs of containers.
func (k *Kubelet) logs() pods.Logs {
	return pods.Logs{Pods: k.cfg.Layout.PodLogs, Containers: k.cfg.Layout.ContainerLogs}
}

// newPodParts creates the parts that pods use. object is the Node object.
func (k *Kubelet) newPodParts(object *nodestatus.Object) (podParts, error) {
	root, registry := k.cfg.Layout.Kubelet, pods.NewRegistry()
	p := podParts{
		registry: registry, platform: &pods.Platform{}, synced: podsource.NewSync(),
		services: podsource.NewServices(k.kube, k.deps.Informers.Services),
		objects:  objectcache.New(k.kube, k.log), tokens: tokens.New(k.kube),
		trust:        trustbundles.New(k.kube, func() { registry.Refresh(trustbundles.Uses) }),
		certificates: &podcerts.Issuer{Kube: k.kube, Node: object.Node, Warn: k.events.PodWarning},
		puller:       k.newPuller(),
		prober:       probe.New(probe.RuntimeExec(k.cri), "1.37"),
		dns: dnsconf.Node{
			ClusterDNS: k.cfg.DNS.Servers, ClusterDomain: k.cfg.DNS.Domain, ResolvConf: k.cfg.DNS.ResolvConf, Addresses: addresses(k.ips),
			Warn: k.events.NodeWarning,
		},
	}
	p.prober.Metrics, p.prober.HookMetrics = probe.NewMetrics(), &k.metrics.Hooks
	var err error
	if p.csi, err = csi.New(csi.Config{
		Root: root, NodeName: k.cfg.NodeName, Kube: k.kube, Tokens: p.tokens, Events: k.events, Log: k.log, Metrics: &k.metrics.Volumes,
		Node: object.Node, FileLabel: volume.FileLabels(), InUse: object.Changed, Registered: registry.RetryVolumes,
	}); err != nil {
		return p, err
	}
	disks := iscsi.Config{Root: root, Log: k.log, Secret: objectcache.API{Kube: k.kube}.Secret, InUse: object.Changed}
	if k.kube != nil {
		disks.Node = object.Node
		p.mirrors = staticpod.NewMirrors(k.kube, object.Node, registry.Changed, k.log)
	}
	p.iscsi = iscsi.New(disks)
	p.volumes = k.newVolumes(object, p)
	return p, nil
}

// newPuller creates the image puller with the configured limits. Unless the feature gate is disabled, it
// records the credentials of pulls.
func (k *Kubelet) newPuller() *images.Puller {
	cfg := k.cfg
	puller := images.NewPuller(k.cri.Images)
	puller.Metrics = &k.metrics.Images
	if cfg.Gates.Enabled(config.GatePulledImages, true) {
		puller.Records = &images.Records{Dir: filepath.Join(cfg.Layout.Kubelet, "image_manager"), Policy: cfg.Images.Verification, Allowed: cfg.Images.Allowlist, Metrics: &k.metrics.Images, Log: k.log}
	}
	puller.Limit(cfg.Images.ParallelPulls)
	puller.LimitRate(int(*cfg.Images.PullQPS), cfg.Images.PullBurst)
	return puller
}

// newVolumes creates the set of all supported volume types. p has the parts that the types use.
func (k *Kubelet) newVolumes(object *nodestatus.Object, p podParts) *volume.Set {
	layout := k.cfg.Layout
	hostPaths := volume.HostPath{Aliases: layout.HostPathAliases()}
	local := volume.Local{Root: layout.Volumes(), Warn: k.events.PodWarning, WarnVolume: func(pv *v1.PersistentVolume, reason, message string) {
		k.events.Event(pv, v1.EventTypeWarning, reason, message)
	}}
	all := k.allocatable()
	allocatable := func() v1.ResourceList { return all }
	return &volume.Set{Root: layout.Kubelet, SELinux: volume.HostHasSELinux(), Metrics: &k.metrics.Volumes, Types: []volume.Type{
		volume.EmptyDir{Allocatable: allocatable},
		hostPaths,
		volume.ConfigMapVolume{Objects: p.objects},
		volume.SecretVolume{Objects: p.objects},
		volume.DownwardAPI{Allocatable: allocatable},
		volume.Projected{Objects: p.objects, Tokens: p.tokens, Allocatable: allocatable, Trust: p.trust, Certificates: p.certificates},
		volume.Image{},
		volume.Claim{Claims: objectcache.API{Kube: k.kube}, Node: object.Node, Types: []volume.PersistentType{hostPaths, local, volume.NFS{}, p.iscsi, p.csi}},
		volume.NFS{},
		p.iscsi,
		p.csi,
	}}
}

// newProviders creates the credential providers for image pulls. It returns nil if none are configured.
func (k *Kubelet) newProviders() (*pullcredentials.Providers, error) {
	if k.cfg.Images.CredentialProviders == "" {
		return nil, nil
	}
	list, err := pullcredentials.Load(k.cfg.Images.CredentialProviders)
	if err != nil {
		return nil, err
	}
	return pullcredentials.New(pullcredentials.Config{
		Providers: list, Dir: k.cfg.Images.CredentialProviderDir, Match: images.Matches, Log: k.log,
		Account: objectcache.API{Kube: k.kube}.ServiceAccount, Token: k.pods.tokens.ForAudience,
	})
}

// newWorkers creates the manager that runs the pods. limits configures their cgroups.
func (k *Kubelet) newWorkers(limits pods.Limits) (*pods.Manager, error) {
	cfg, p := k.cfg, k.pods
	providers, err := k.newProviders()
	if err != nil {
		return nil, err
	}
	users := &usernamespaces.Allocator{Start: crc32.ChecksumIEEE([]byte(cfg.NodeName))}
	if users.Ranges, err = usernamespaces.Configured(context.Background(), cfg.Node.MaxPods); err != nil {
		return nil, err
	}
	allocatable := k.allocatable()
	workers := pods.Config{
		Log: k.log, Registry: p.registry, Platform: p.platform, CRI: k.cri, Kube: k.kube, Objects: p.objects,
		Volumes: p.volumes, Prober: p.prober, Events: k.events, Metrics: k.metrics, Tracer: k.traces.Tracer(instrumentationScope),
		Images: pods.Images{Puller: p.puller, Providers: providers, DockerConfigs: pullcredentials.DockerConfigs(cfg.Layout.Kubelet)},
		Limits: limits,
		Security: pods.Security{
			SeccompDefault: cfg.Containers.SeccompDefault, SeccompRoot: filepath.Join(cfg.Layout.Kubelet, "seccomp"),
			Sysctls: cfg.Containers.Sysctls, Users: users,
		},
		Node: pods.Node{
			DNS: p.dns, IPs: addresses(k.ips), Object: k.node.object.Node, Services: p.services.List,
			Allocatable: func() v1.ResourceList { return allocatable },
		},
		Logs: k.logs(),
		Collaborators: pods.Collaborators{
			Admitter: k.newAdmitter(allocatable), Resources: podResources{k.resources, k.deps.Policies}, Claims: k.resources.Claims(), Network: k.node.status,
		},
		CrashMax: cfg.Containers.CrashMax,
	}
	if k.deps.Policies != nil {
		workers.Policies = k.deps.Policies
	}
	if k.podsAPI != nil {
		workers.Observer = k.podsAPI
	}
	if p.mirrors != nil {
		workers.Mirror = p.mirrors
	}
	return pods.NewManager(workers), nil
}

// newAdmitter creates the admitter, which decides whether a pod that is new to the node may run.
func (k *Kubelet) newAdmitter(allocatable v1.ResourceList) *admission.Admitter {
	return admission.New(admission.Config{
		NodeName: k.cfg.NodeName, Kube: k.kube, Pods: k.pods.registry, Node: k.node.status, Allocatable: allocatable, Resources: k.resources,
		Shutdown: k.node.shutdown, Eviction: k.node.eviction, AllowedUnsafeSysctls: k.cfg.Containers.AllowedUnsafeSysctls,
		Events: k.events, Preempted: k.metrics.Preempted, Log: k.log,
	})
}

// podResources is the ResourceManager of the pod workers. In addition to devices, CPUs and memory it releases
// the network policies of terminated pods.
type podResources struct {
	*resources.Manager
	policies Policies // may be nil
}

// PodTerminated releases the network policies and the resources of a pod of which no process runs any more.
func (r podResources) PodTerminated(pod types.UID) {
	if r.policies != nil {
		r.policies.Forget(pod)
	}
	r.Manager.PodTerminated(pod)
}

// cgroupLimits returns the configuration of the cgroup limits of pods, as far as the machine's cgroups support them.
// It also records the version of the cgroups in the metrics.
func (k *Kubelet) cgroupLimits() pods.Limits {
	cfg := k.cfg
	limits := pods.Limits{
		Root: cfg.Layout.CgroupRoot, MemoryCapacity: k.machine.MemoryBytes,
		CPUQuota: !cfg.Containers.NoCPUQuota, CPUQuotaPeriod: cfg.Containers.CPUQuotaPeriod, Pids: cfg.Containers.PidsLimit,
		StaticCPUs: k.resources.StaticCPUs(), StaticMemory: k.resources.StaticMemory(),
	}
	if k.resources.StaticCPUs() && cfg.Gates.Enabled(config.GateNoQuota, true) {
		limits.HasExclusiveCPUs = k.resources.HasExclusiveCPUs
	}
	if k.cgroups == nil {
		return limits
	}
	limits.Cgroups = hostcgroups.Timed{Cgroups: k.cgroups, Observe: k.metrics.Node.Cgroup}
	k.metrics.Node.CgroupVersion(1)
	// Without the controller the kernel cannot limit huge pages per pod.
	for _, size := range slices.Sorted(maps.Keys(k.machine.Hugepages)) {
		if k.machine.Hugepages[size] > 0 && slices.Contains(k.cgroups.Controllers(), "hugetlb") {
			limits.Hugepages = append(limits.Hugepages, size)
		}
	}
	if !k.cgroups.Unified() {
		return limits
	}
	k.metrics.Node.CgroupVersion(2)
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

// newSources creates the sources of pods: the API server, and the directory and URL of static pods.
func (k *Kubelet) newSources() *podsource.Sources {
	static := k.cfg.StaticPods
	return podsource.New(podsource.Config{
		NodeName: k.cfg.NodeName, Kube: k.kube, PodInformer: k.deps.Informers.Pods, NodeInformer: k.deps.Informers.Nodes,
		Registry: k.pods.registry, Workers: k.workers, Node: k.node.status, Mirrors: k.pods.mirrors,
		Credentials: []podsource.Credentials{k.pods.tokens, k.pods.certificates},
		ManifestDir: static.Dir, ManifestURL: static.URL, Header: static.Header, CheckInterval: static.Check,
		Duplicate: k.events.DuplicateStaticPod, Synced: k.pods.synced, Log: k.log,
	})
}
