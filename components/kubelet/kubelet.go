package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/component-base/tracing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cpus"
	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/devices"
	"hyperkube/components/kubelet/dnsconf"
	"hyperkube/components/kubelet/dra"
	"hyperkube/components/kubelet/eviction"
	"hyperkube/components/kubelet/images"
	"hyperkube/components/kubelet/memory"
	"hyperkube/components/kubelet/nodestatus"
	"hyperkube/components/kubelet/objects"
	"hyperkube/components/kubelet/pluginwatch"
	"hyperkube/components/kubelet/podcerts"
	"hyperkube/components/kubelet/pods"
	"hyperkube/components/kubelet/podsapi"
	"hyperkube/components/kubelet/probe"
	"hyperkube/components/kubelet/shutdown"
	"hyperkube/components/kubelet/staticpod"
	"hyperkube/components/kubelet/stats"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/components/kubelet/topology"
	"hyperkube/components/kubelet/usernamespaces"
	"hyperkube/components/kubelet/volume"
	"hyperkube/components/kubelet/volume/csi"
	"hyperkube/internal/cgroup"
	"hyperkube/internal/localpath"
)

// Kubelet is one node's kubelet.
type Kubelet struct {
	cfg             Config
	log             *slog.Logger
	kube            kubernetes.Interface // nil without an API server
	cri             *cri.Client
	manager         *pods.Manager
	host            *pods.Host
	keeper          *nodestatus.Keeper
	mirrors         *staticpod.Mirrors // nil without an API server
	objects         *objects.Store
	tokens          *tokens
	csi             *csi.Plugin
	trust           *trustBundles
	podCerts        *podcerts.Issuer
	events          record.EventBroadcaster
	cgroups         *cgroup.Manager // nil with NoCgroups
	ips             []netip.Addr
	machine         nodestatus.Machine
	serviceInformer atomic.Pointer[cache.SharedInformer]
	collector       *images.Collector
	eviction        *eviction.Manager
	stats           *stats.Provider
	disks           *disks
	devices         *devices.Manager
	claims          *dra.Manager
	podsAPI         *podsapi.Server // nil with the gate off
	plugins         *pluginwatch.Watcher
	cpus            *cpus.Manager   // nil when nobody has CPUs of its own
	spread          *spreader       // nil as cpus is
	memory          *memory.Manager // nil when nobody has memory of its own
	topology        *topology.Manager
	shutdown        *shutdown.Manager // nil when a shutdown does not wait
	metrics         *telemetry.Metrics
	tracing         tracing.TracerProvider // nil without traces
	began           time.Time              // when it was made
	// sourcesKnown: all sources have told their pods.
	sourcesKnown atomic.Bool
}

// New validates cfg, fills it, and looks at the machine.
func New(cfg Config) (*Kubelet, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	k := &Kubelet{cfg: cfg, log: cfg.Log, ips: cfg.IPs, metrics: telemetry.New(), began: time.Now()}
	if cfg.Clients != nil {
		k.kube = cfg.Clients.Kube
	}
	if len(k.ips) == 0 {
		ips, err := nodeIPs()
		if err != nil {
			return nil, fmt.Errorf("kubelet: %w", err)
		}
		k.ips = ips
	}
	if err := os.MkdirAll(filepath.Join(cfg.Layout.Kubelet, "pods"), 0o750); err != nil {
		return nil, fmt.Errorf("kubelet: making the root directory: %w", err)
	}
	if err := os.MkdirAll(cfg.Layout.PodLogs, 0o755); err != nil {
		return nil, fmt.Errorf("kubelet: making the directory of logs: %w", err)
	}
	machine, err := nodestatus.ReadMachine(cfg.Layout.Kubelet)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	k.machine = machine
	if err := k.refuseMachine(); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	if k.tracing, err = newTracing(cfg.Tracing, cfg.NodeName); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	if k.cri, err = cri.Dial(cfg.Endpoint, tracesCalls(k.tracing)...); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	if cfg.ImageEndpoint != "" {
		if err := k.cri.ImagesOf(cfg.ImageEndpoint); err != nil {
			return nil, fmt.Errorf("kubelet: %w", err)
		}
	}
	if cfg.ContentionProfile && !cfg.NoProfiling {
		goruntime.SetBlockProfileRate(1)
	}
	if !cfg.NoCgroups {
		if k.cgroups, err = cgroup.Open(); err != nil {
			return nil, fmt.Errorf("kubelet: %w", err)
		}
	}
	if err := k.compose(); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	return k, nil
}

// compose builds the parts.
func (k *Kubelet) compose() error {
	cfg := k.cfg
	capacity := k.capacity()
	allocatable := nodestatus.Allocatable(capacity, k.reserved())
	k.events = record.NewBroadcaster()
	recorder := k.events.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: cfg.NodeName})
	k.objects = objects.New(k.kube, k.log)
	k.tokens = newTokens(k.kube)
	k.trust = &trustBundles{kube: k.kube, changed: func() { k.manager.Refresh(usesTrust) }}
	k.podCerts = &podcerts.Issuer{Kube: k.kube, Node: func() *v1.Node { return k.keeper.Node() }}
	warn := func(pod *v1.Pod, reason, message string) {
		ref := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
		recorder.Event(ref, v1.EventTypeWarning, reason, message)
	}
	k.podCerts.Warn = warn
	warnVolume := func(pv *v1.PersistentVolume, reason, message string) {
		recorder.Event(pv, v1.EventTypeWarning, reason, message)
	}
	getAllocatable := func() v1.ResourceList { return allocatable }
	var err error
	if k.csi, err = k.newCSI(recorder); err != nil {
		return err
	}
	k.keeper = nodestatus.New(nodestatus.Config{
		Name: cfg.NodeName, Kube: k.kube, CRI: k.cri, Events: recorder, Log: k.log,
		Register: !cfg.NoRegister, Labels: cfg.Labels, Annotations: map[string]string{localpath.Annotation: cfg.Layout.Volumes()}, Taints: cfg.Taints, Unschedulable: cfg.Unschedulable,
		IPs: k.nodeIPs, ProviderID: cfg.ProviderID, Port: int32(cfg.Port), Machine: k.machine,
		Capacity: capacity, Allocatable: allocatable, Pressure: k.pressure, Wrong: k.wrong, Devices: k.deviceCapacity, Renewed: func() bool { return k.devices.New() }, PodCIDR: cfg.PodCIDR,
		Lease: cfg.LeaseDuration, Renew: cfg.LeaseDuration / 4, Update: cfg.NodeUpdate, Report: cfg.NodeReport, MaxImages: int(*cfg.MaxImages),
		VolumesInUse: k.csi.VolumesInUse, Seen: k.csi.Observe, Started: k.nodeStarted,
	})
	resolv := cfg.ResolvConf
	if resolv == "" {
		resolv = dnsconf.Upstream()
	}
	puller := images.NewPuller(k.cri.Images)
	puller.Metrics = k.metrics
	if cfg.Gates.Enabled(gatePulledImages, true) {
		puller.Records = &images.Records{Dir: filepath.Join(cfg.Layout.Kubelet, "image_manager"), Policy: cfg.Verification, Allowed: cfg.Allowlist, Metrics: k.metrics, Log: k.log}
	}
	providers, err := k.newProviders()
	if err != nil {
		return err
	}
	puller.Limit(cfg.ParallelPulls)
	puller.LimitRate(int(*cfg.PullQPS), cfg.PullBurst)
	hostPaths := volume.HostPath{Alias: cfg.Layout.KubeletAlias()}
	k.host = &pods.Host{
		Log: k.log, NodeName: cfg.NodeName, CRI: k.cri, Kube: k.kube, Objects: k.objects,
		Metrics: k.metrics,
		Volumes: &volume.Set{Root: cfg.Layout.Kubelet, SELinux: volume.HostHasSELinux(), Metrics: k.metrics, Types: []volume.Type{
			volume.EmptyDir{Allocatable: getAllocatable},
			hostPaths,
			volume.ConfigMapVolume{Objects: k.objects},
			volume.SecretVolume{Objects: k.objects},
			volume.DownwardAPI{Allocatable: getAllocatable},
			volume.Projected{Objects: k.objects, Tokens: k.tokens, Allocatable: getAllocatable, Trust: k.trust, Certificates: k.podCerts},
			volume.Image{},
			volume.Claim{Claims: apiClaims{k.kube}, Node: k.keeper.Node, Types: []volume.PersistentType{
				hostPaths, volume.Local{Folders: cfg.Layout.Volumes(), Warn: warn, WarnVolume: warnVolume}, volume.NFS{}, k.csi,
			}},
			volume.NFS{},
			k.csi,
		}},
		Puller: puller, Providers: providers, DockerConfigs: dockerConfigs(cfg.Layout.Kubelet),
		Prober: probe.New(k.execSync, "1.37"),
		Events: recorder, CgroupRoot: cfg.Layout.CgroupRoot,
		DNS:     dnsconf.Node{ClusterDNS: cfg.ClusterDNS, ClusterDomain: cfg.ClusterDomain, ResolvConf: resolv},
		NodeIPs: k.nodeIPs, Node: k.keeper.Node, Allocatable: getAllocatable, MemoryCapacity: k.machine.MemoryBytes,
		RuntimeName: "hyperkube", PodLogs: cfg.Layout.PodLogs, ContainerLogs: cfg.Layout.ContainerLogs,
		SeccompDefault: cfg.SeccompDefault, SeccompRoot: filepath.Join(cfg.Layout.Kubelet, "seccomp"),
		CPUCFSQuota: !cfg.CPUCFSQuotaOff, CPUCFSQuotaPeriod: cfg.CPUCFSQuotaPeriod,
		Services:     k.listServices,
		Sysctls:      cfg.PodSysctls,
		PodPidsLimit: cfg.PodPidsLimit, AllowedUnsafeSysctls: cfg.AllowedUnsafeSysctls,
		CrashMax: cfg.CrashMax,
		Dead:     cfg.Dead,
		Extend:   k.extend,
	}
	if k.host.Users.Ranges, err = usernamespaces.Configured(context.Background(), cfg.MaxPods); err != nil {
		return err
	}
	if k.tracing != nil {
		k.host.Tracer = k.tracing.Tracer(scope)
	}
	if k.cgroups != nil {
		k.host.Cgroups = timedCgroups{k.cgroups, k.metrics}
		k.metrics.CgroupVersion(1)
		// A kernel without the controller cannot tell pods apart.
		for _, size := range slices.Sorted(maps.Keys(k.machine.Hugepages)) {
			if k.machine.Hugepages[size] > 0 && slices.Contains(k.cgroups.Controllers(), "hugetlb") {
				k.host.Hugepages = append(k.host.Hugepages, size)
			}
		}
		if k.cgroups.Unified() {
			k.metrics.CgroupVersion(2)
			k.host.WholeOOMKill = !cfg.SingleOOMKill
			k.host.MemoryQoS = cfg.Gates.Enabled(gateMemoryQoS, true)
			k.host.Tiered = k.host.MemoryQoS && cfg.TieredMemory
			if cfg.MemoryThrottling != nil && k.host.MemoryQoS {
				k.host.Throttling = *cfg.MemoryThrottling
			}
			k.host.Swap = func() int64 { return 0 }
			if cfg.LimitedSwap {
				k.host.Swap = func() int64 { return k.machine.SwapBytes }
			}
		}
	}
	k.host.NetworkProblem = func() string {
		problem := k.keeper.NetworkProblem()
		if problem != "" {
			// It may be over by now.
			k.keeper.Changed()
		}
		return problem
	}
	k.manager = pods.NewManager(k.host)
	k.manager.Admit = k.admit
	k.disks = k.newDisks()
	k.collector = &images.Collector{
		CRI: k.cri, High: cfg.ImageGCHigh, Low: cfg.ImageGCLow, MinAge: cfg.ImageMinAge, MaxAge: cfg.ImageMaxAge, Log: k.log, Path: cfg.Layout.Data, Records: puller.Records, Metrics: k.metrics,
	}
	k.stats = &stats.Provider{
		CRI: k.cri, NodeName: cfg.NodeName, Root: cfg.Layout.Kubelet, Logs: cfg.Layout.PodLogs, Images: k.disks.imagesOn,
		RuntimePID: k.runtimePID,
		Pods:       k.manager.Pods, Boot: time.Now(), PodLinks: cfg.Layout.LinkPrefix + "v",
	}
	k.host.Prober.Metrics, k.host.Prober.HookMetrics = probe.NewMetrics(), k.metrics
	if k.cgroups != nil {
		k.stats.Whole = func() (cgroup.Stats, error) { return k.cgroups.Stats(k.kubepods()) }
		k.stats.Pressures = func() cgroup.Pressures { return k.cgroups.Pressures("/") }
	}
	k.eviction = k.newEviction(recorder)
	k.shutdown = k.newShutdown(recorder)
	if err = k.newOwn(); err != nil {
		return err
	}
	k.plugins = k.newPlugins()
	k.host.DeviceHealth = func(pod *v1.Pod, container string) []v1.ResourceStatus {
		return append(k.devices.Health(pod.UID, container), k.claims.Health(pod, container)...)
	}
	if k.cpus != nil && cfg.Gates.Enabled(gateNoQuota, true) {
		k.host.OwnCPUs = func(pod types.UID, container string) bool {
			_, own := k.cpus.Of(pod, container)
			return own
		}
	}
	k.host.Claims = k.claims
	if cfg.Policies != nil {
		k.host.Network = cfg.Policies.Expect
	}
	k.host.StaticMemory = k.memory != nil
	k.host.StaticCPUs, k.host.Ended = k.cpus != nil, k.released
	if k.kube != nil {
		k.mirrors = staticpod.NewMirrors(k.kube, k.keeper.Node, k.manager.Changed, k.log)
		k.host.Mirror = k.mirrors
	}
	return nil
}

// reserved is what pods cannot have: what is set aside and what eviction keeps.
func (k *Kubelet) reserved() v1.ResourceList {
	out := v1.ResourceList{}
	for name, q := range k.cfg.Reserved {
		out[name] = q.DeepCopy()
	}
	add := func(name v1.ResourceName, n int64) {
		q := out[name]
		q.Add(*resource.NewQuantity(n, resource.BinarySI))
		out[name] = q
	}
	for _, t := range k.cfg.thresholds {
		switch {
		case t.Grace > 0:
		case t.Signal == eviction.MemoryAvailable:
			add(v1.ResourceMemory, t.Value.Of(k.machine.MemoryBytes))
		case t.Signal == eviction.NodeFsAvailable:
			add(v1.ResourceEphemeralStorage, t.Value.Of(k.machine.DiskBytes))
		}
	}
	return out
}

func (k *Kubelet) nodeIPs() []string {
	out := make([]string, len(k.ips))
	for i, ip := range k.ips {
		out[i] = ip.String()
	}
	return out
}

// Ready is closed once the API knows that the node is ready.
func (k *Kubelet) Ready() <-chan struct{} { return k.keeper.Ready() }

// LookAtRuntime makes the kubelet ask the runtime how it is, for something that it
// tells may have changed. It does not block.
func (k *Kubelet) LookAtRuntime() { k.keeper.Changed() }

// Run runs pods until ctx ends. Containers go on running then.
func (k *Kubelet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer k.cri.Close()
	defer k.endTracing()
	defer k.objects.Close()
	defer k.trust.close()
	if k.kube != nil {
		var sink record.EventSink = &typedcorev1.EventSinkImpl{Interface: k.kube.CoreV1().Events("")}
		if n := *k.cfg.EventQPS; n > 0 {
			sink = &limitedSink{EventSink: sink, limit: flowcontrol.NewTokenBucketRateLimiter(float32(n), k.cfg.EventBurst)}
		}
		k.events.StartRecordingToSink(sink)
	}
	defer k.events.Shutdown()
	if err := k.prepareHost(); err != nil {
		k.nodeEvent(v1.EventTypeWarning, "KubeletSetupFailed", err.Error())
		return fmt.Errorf("kubelet: %w", err)
	}
	if k.kube != nil {
		k.greet()
	}

	var wait sync.WaitGroup
	failed := make(chan error, 8)
	run := func(name string, f func(context.Context) error) {
		wait.Add(1)
		go func() {
			defer wait.Done()
			if err := f(ctx); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("kubelet: %s: %w", name, err)
			}
		}()
	}
	// What takes requests goes first, then what makes the node ready, then pods.
	if !k.cfg.NoServer {
		serve, err := k.server()
		if err != nil {
			return fmt.Errorf("kubelet: %w", err)
		}
		run("serving", serve)
	}
	run("keeping the node", k.keeper.Run)
	run("running pods", k.runPods)
	run("housekeeping", k.housekeep)
	run("following plugins", k.plugins.Run)
	run("giving devices", k.devices.Run)
	run("following drivers of resource claims", k.claims.Run)
	run("telling of pods' resources", k.podResources)
	if k.podsAPI != nil {
		run("telling of pods", func(ctx context.Context) error { return k.podsAPI.Serve(ctx, k.cfg.Layout.Kubelet) })
	}
	run("keeping volumes of drivers", k.csi.Run)
	run("watching what runs short", k.eviction.Run)
	run("following the kernel's log", k.followOOM)
	if k.cfg.ServicesReady != nil {
		run("waiting for services", k.followServices)
	}
	if k.shutdown != nil {
		run("waiting for the machine's shutdown", k.shutdown.Run)
	}
	if k.spread != nil {
		run("keeping containers on their CPUs", k.spread.Run)
	}

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	cancel()
	wait.Wait()
	return err
}

// execSync runs a command in a container for probes and hooks.
func (k *Kubelet) execSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (int, []byte, error) {
	seconds := int64((timeout + time.Second - 1) / time.Second)
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout+2*time.Second)
		defer cancel()
	}
	resp, err := k.cri.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: seconds})
	if err != nil {
		if timeout > 0 && cri.IsTimeout(err) {
			return 0, nil, probe.ErrTimeout
		}
		return 0, nil, errors.New(cri.Message(err))
	}
	return int(resp.ExitCode), append(resp.Stdout, resp.Stderr...), nil
}
