package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/events"
	"hyperkube/components/kubelet/node/eviction"
	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/components/kubelet/node/shutdown"
	"hyperkube/components/kubelet/node/stats"
	"hyperkube/components/kubelet/pluginwatch"
	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/podcerts"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/pod/probe"
	"hyperkube/components/kubelet/pod/staticpod"
	"hyperkube/components/kubelet/pod/tokens"
	"hyperkube/components/kubelet/pod/trustbundles"
	"hyperkube/components/kubelet/pod/volume/csi"
	"hyperkube/components/kubelet/pod/volume/iscsi"
	"hyperkube/components/kubelet/resources/cpumanager"
	"hyperkube/components/kubelet/resources/devicemanager"
	"hyperkube/components/kubelet/resources/dra"
	"hyperkube/components/kubelet/resources/memorymanager"
	"hyperkube/components/kubelet/resources/topology"
	"hyperkube/components/kubelet/server/podsapi"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/components/kubelet/traces"
	"hyperkube/internal/host/cgroup"
)

// Kubelet is the kubelet of one node.
type Kubelet struct {
	cfg  config.Config
	deps Dependencies
	log  *slog.Logger
	kube kubernetes.Interface // nil without an API server
	cri  *cri.Client
	// pods and platform are created before the parts that use them, and manager after them.
	pods            *pods.Registry
	platform        *pods.Platform
	garbage         *pods.GarbageCollector
	manager         *pods.Manager
	host            pods.Config // the configuration of manager
	nodeStatus      *nodestatus.Manager
	mirrors         *staticpod.Mirrors // nil without an API server
	objects         *objectcache.Store
	tokens          *tokens.Cache
	csi             *csi.Plugin
	iscsi           *iscsi.Plugin
	trust           *trustbundles.Watcher
	podCerts        *podcerts.Issuer
	events          *events.Recorder
	cgroups         *cgroup.Manager // nil if CgroupConfig.Off is set
	ips             []netip.Addr
	machine         nodestatus.Machine
	serviceInformer atomic.Pointer[cache.SharedInformer]
	collector       *images.Collector
	eviction        *eviction.Manager
	stats           *stats.Provider
	disks           *disks
	devices         *devicemanager.Manager
	claims          *dra.Manager
	podsAPI         *podsapi.Server // nil if the feature gate is disabled
	plugins         *pluginwatch.Watcher
	cpus            *cpumanager.Manager    // nil without the static policy
	cpuSetUpdater   *cpuSetUpdater         // nil if cpus is nil
	memory          *memorymanager.Manager // nil without the Static policy
	topology        *topology.Manager
	shutdown        *shutdown.Manager // nil if graceful node shutdown is disabled
	metrics         *telemetry.Metrics
	traces          *traces.Provider
	started         time.Time // when New was called
	// sourcesKnown is set when all pod sources have delivered their pods.
	sourcesKnown atomic.Bool
}

// New completes and validates cfg, reads the machine's properties, and creates the kubelet's parts.
func New(cfg config.Config, deps Dependencies) (*Kubelet, error) {
	if err := cfg.Complete(); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	deps.Log = cmp.Or(deps.Log, slog.Default())
	k := &Kubelet{cfg: cfg, deps: deps, log: deps.Log, metrics: telemetry.New(), started: time.Now()}
	if deps.Clients != nil {
		k.kube = deps.Clients.Kube
	}
	ips, err := nodestatus.Addresses(cfg.Node.IPs)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	k.ips = ips
	if err := os.MkdirAll(filepath.Join(cfg.Layout.Kubelet, "pods"), 0o750); err != nil {
		return nil, fmt.Errorf("kubelet: creating the root directory: %w", err)
	}
	if err := os.MkdirAll(cfg.Layout.PodLogs, 0o755); err != nil {
		return nil, fmt.Errorf("kubelet: creating the pod log directory: %w", err)
	}
	machine, err := nodestatus.ReadMachine(cfg.Layout.Kubelet)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	k.machine = machine
	if err := k.cfg.CheckMachine(k.machine); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	if k.traces, err = traces.New(cfg.Tracing, cfg.NodeName); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	if k.cri, err = cri.Dial(cfg.Runtime.Endpoint, cfg.Runtime.Timeout, k.traces.DialOptions()...); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	if cfg.Images.Endpoint != "" {
		if err := k.cri.UseImageEndpoint(cfg.Images.Endpoint); err != nil {
			return nil, fmt.Errorf("kubelet: %w", err)
		}
	}
	if cfg.Server.ContentionProfile && !cfg.Server.NoProfiling {
		goruntime.SetBlockProfileRate(1)
	}
	if !cfg.Cgroups.Off {
		if k.cgroups, err = cgroup.Open(); err != nil {
			return nil, fmt.Errorf("kubelet: %w", err)
		}
	}
	if err := k.compose(); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	return k, nil
}

func (k *Kubelet) nodeIPs() []string {
	out := make([]string, len(k.ips))
	for i, ip := range k.ips {
		out[i] = ip.String()
	}
	return out
}

// Ready returns a channel that is closed when the API server has the node's Ready condition.
func (k *Kubelet) Ready() <-chan struct{} { return k.nodeStatus.Ready() }

// CheckRuntime makes the kubelet update the node's status from the runtime, because the runtime's
// status may have changed. It does not block.
func (k *Kubelet) CheckRuntime() { k.nodeStatus.Changed() }

// Run runs the kubelet until ctx is done. Containers continue to run after that.
func (k *Kubelet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer k.cri.Close()
	defer k.traces.Flush(k.log)
	defer k.objects.Close()
	defer k.trust.Close()
	if k.kube != nil {
		k.events.Start(k.kube, *k.cfg.Events.QPS, k.cfg.Events.Burst)
	}
	defer k.events.Shutdown()
	if err := k.prepareHost(); err != nil {
		k.nodeEvent(v1.EventTypeWarning, "KubeletSetupFailed", err.Error())
		return fmt.Errorf("kubelet: %w", err)
	}
	if k.kube != nil {
		k.emitStartEvents()
	}

	var wait sync.WaitGroup
	failed := make(chan error, 8)
	run := func(name string, f func(context.Context) error) {
		wait.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("kubelet: %s: %w", name, err)
			}
		})
	}
	// Start the server first, then what makes the node ready, then pods.
	if !k.cfg.Server.Off {
		serve, err := k.server()
		if err != nil {
			return fmt.Errorf("kubelet: %w", err)
		}
		run("server", serve)
	}
	run("node registration and status", k.nodeStatus.Run)
	run("pod workers", k.runPods)
	run("housekeeping", k.housekeep)
	run("plugin watcher", k.plugins.Run)
	run("device manager", k.devices.Run)
	run("resource claim manager", k.claims.Run)
	run("PodResources API", k.podResources)
	if k.podsAPI != nil {
		run("pods API", func(ctx context.Context) error { return k.podsAPI.Serve(ctx, k.cfg.Layout.Kubelet) })
	}
	run("CSI volumes", k.csi.Run)
	run("eviction manager", k.eviction.Run)
	run("OOM watcher", k.watchOOM)
	if k.deps.ServicesReady != nil {
		run("service informer", k.waitForServices)
	}
	if k.shutdown != nil {
		run("node shutdown manager", k.shutdown.Run)
	}
	if k.cpuSetUpdater != nil {
		run("CPU set reconciler", k.cpuSetUpdater.Run)
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

// execSync runs a command in a container, for probes and lifecycle hooks.
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
