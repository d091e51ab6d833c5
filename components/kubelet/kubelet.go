package kubelet

import (
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
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/component-base/tracing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cpus"
	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/devices"
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
	"hyperkube/components/kubelet/volume/csi"
	"hyperkube/components/kubelet/volume/iscsi"
	"hyperkube/internal/cgroup"
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
	iscsi           *iscsi.Plugin
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
	k := &Kubelet{cfg: cfg, log: cfg.Log, metrics: telemetry.New(), began: time.Now()}
	if cfg.Clients != nil {
		k.kube = cfg.Clients.Kube
	}
	ips, err := nodeIPs(cfg.Node.IPs)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	k.ips = ips
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
	if k.cri, err = cri.Dial(cfg.Endpoint, cfg.RuntimeTimeout, tracesCalls(k.tracing)...); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	if cfg.Images.Endpoint != "" {
		if err := k.cri.ImagesOf(cfg.Images.Endpoint); err != nil {
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

// reserved is what pods cannot have: what is set aside and what eviction keeps.
func (k *Kubelet) reserved() v1.ResourceList {
	out := v1.ResourceList{}
	for name, q := range k.cfg.Reserved.All {
		out[name] = q.DeepCopy()
	}
	add := func(name v1.ResourceName, n int64) {
		q := out[name]
		q.Add(*resource.NewQuantity(n, resource.BinarySI))
		out[name] = q
	}
	for _, t := range k.cfg.Eviction.thresholds {
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
		if n := *k.cfg.Events.QPS; n > 0 {
			sink = &limitedSink{EventSink: sink, limit: flowcontrol.NewTokenBucketRateLimiter(float32(n), k.cfg.Events.Burst)}
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
		wait.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("kubelet: %s: %w", name, err)
			}
		})
	}
	// What takes requests goes first, then what makes the node ready, then pods.
	if !k.cfg.Server.Off {
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
