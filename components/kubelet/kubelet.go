package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"hyperkube/components/kubelet/config"
	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/node/events"
	"hyperkube/components/kubelet/node/hostcgroups"
	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/components/kubelet/node/oomwatch"
	"hyperkube/components/kubelet/pluginwatch"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/pod/podsource"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/components/kubelet/resources"
	"hyperkube/components/kubelet/server/podresources"
	"hyperkube/components/kubelet/server/podsapi"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/base/tracing"
	"hyperkube/internal/host/cgroup"
)

// Kubelet runs the pods of one node. New creates it, and Run runs it.
type Kubelet struct {
	cfg     config.Config
	deps    Dependencies
	log     *slog.Logger
	kube    kubernetes.Interface // nil without an API server
	machine nodestatus.Machine
	ips     []netip.Addr
	started time.Time // when New was called

	cri     *cri.Client
	cgroups *cgroup.Manager // nil if pods have no cgroups
	traces  *tracing.Provider
	metrics *telemetry.Metrics

	// The following fields are set by compose.

	events    *events.Recorder
	pods      podParts
	resources *resources.Manager
	node      nodeParts
	workers   *pods.Manager
	sources   *podsource.Sources
	podsAPI   *podsapi.Server // nil if the feature gate is disabled
	plugins   *pluginwatch.Watcher
}

// instrumentationScope is the instrumentation scope of the kubelet's spans, as in upstream.
const instrumentationScope = "k8s.io/kubernetes/pkg/kubelet"

// New completes and validates cfg, reads the machine's properties, and creates the kubelet's parts. It starts
// nothing. It returns an error if the configuration is not valid or the machine does not meet it.
func New(cfg config.Config, deps Dependencies) (*Kubelet, error) {
	k, err := connect(cfg, deps)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	if err := k.compose(); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	return k, nil
}

// connect returns a Kubelet that has its configuration, the machine's properties and a client of the container
// runtime, but no parts yet: compose creates them. It creates the directories of pods and logs. It returns an error
// if the configuration is not valid or the machine does not meet its requirements.
func connect(cfg config.Config, deps Dependencies) (*Kubelet, error) {
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	deps.Log = cmp.Or(deps.Log, slog.Default())
	k := &Kubelet{cfg: cfg, deps: deps, log: deps.Log, metrics: telemetry.New(), started: time.Now()}
	if deps.Clients != nil {
		k.kube = deps.Clients.Kube
	}
	var err error
	if k.ips, err = nodestatus.Addresses(cfg.Node.IPs); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(cfg.Layout.Kubelet, "pods"), 0o750); err != nil {
		return nil, fmt.Errorf("creating the root directory: %w", err)
	}
	if err := os.MkdirAll(cfg.Layout.PodLogs, 0o755); err != nil {
		return nil, fmt.Errorf("creating the pod log directory: %w", err)
	}
	if k.machine, err = nodestatus.ReadMachine(cfg.Layout.Kubelet); err != nil {
		return nil, err
	}
	if err := k.cfg.CheckMachine(k.machine); err != nil {
		return nil, err
	}
	if k.traces, err = tracing.New(cfg.Tracing, "kubelet", cfg.NodeName); err != nil {
		return nil, err
	}
	if k.cri, err = cri.Dial(cfg.Runtime.Endpoint, cfg.Runtime.Timeout, k.traces.DialOptions()...); err != nil {
		return nil, err
	}
	if cfg.Images.Endpoint != "" {
		if err := k.cri.UseImageEndpoint(cfg.Images.Endpoint); err != nil {
			return nil, err
		}
	}
	if cfg.Server.ContentionProfile && !cfg.Server.NoProfiling {
		goruntime.SetBlockProfileRate(1)
	}
	if !cfg.Cgroups.Off {
		if k.cgroups, err = cgroup.Open(); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// Ready returns a channel that is closed when the API server has first received a status in which the node is
// ready.
func (k *Kubelet) Ready() <-chan struct{} { return k.node.status.Ready() }

// Healthy returns an error if the kubelet is not healthy, as /healthz of its server. It blocks if the kubelet hangs.
func (k *Kubelet) Healthy() error { return k.workers.Healthy() }

// CheckRuntime makes the kubelet update the status of the node, because the status of the container runtime
// may have changed. It does not block.
func (k *Kubelet) CheckRuntime() { k.node.object.Changed() }

// Run runs the kubelet until ctx is done or a part fails, whose error it returns. Containers continue to run
// after that. It must be called only once.
func (k *Kubelet) Run(ctx context.Context) error {
	// These are closed after all parts have stopped, because the parts use them until then. The
	// connection to the runtime is closed last.
	defer k.cri.Close()
	defer k.traces.Flush(k.log)
	defer k.pods.objects.Close()
	defer k.pods.trust.Close()
	defer k.events.Shutdown()
	if k.kube != nil {
		k.events.Start(k.kube, *k.cfg.Events.QPS, k.cfg.Events.Burst)
	}
	// The mounts that all pods share must exist before CSI drivers register.
	if err := volume.PrepareRoot(k.cfg.Layout.Kubelet, k.deps.Journal); err != nil {
		k.events.NodeWarning("KubeletSetupFailed", err.Error())
		return fmt.Errorf("kubelet: %w", err)
	}
	if k.kube != nil {
		k.emitStartEvents()
	}

	// The server comes first, then what makes the node ready, then pods. All stop together when ctx is
	// done or one of them fails.
	podAllocations := &podresources.Server{Root: k.cfg.Layout.Kubelet, Pods: k.pods.registry, Resources: k.resources, Count: k.metrics.Sockets.PodResourcesRequest}
	watchOOM := func(ctx context.Context) error {
		return oomwatch.Report(ctx, func(message string) { k.events.NodeWarning("SystemOOM", message) }, k.log)
	}
	var parts []part
	if !k.cfg.Server.Off {
		serve, err := k.server()
		if err != nil {
			return fmt.Errorf("kubelet: %w", err)
		}
		parts = append(parts, part{"server", serve})
	}
	parts = append(parts,
		part{"node registration and status", k.node.status.Run},
		part{"service informer", k.node.readiness.Run},
		part{"pod workers", k.runPods},
		part{"housekeeping", k.node.housekeeper.Run},
		part{"plugin watcher", k.plugins.Run},
		part{"resources", k.resources.Run},
		part{"PodResources API", podAllocations.Run},
		part{"CSI volumes", k.pods.csi.Run},
		part{"eviction manager", k.node.eviction.Run},
		part{"OOM watcher", watchOOM},
	)
	if k.podsAPI != nil {
		parts = append(parts, part{"pods API", func(ctx context.Context) error { return k.podsAPI.Serve(ctx, k.cfg.Layout.Kubelet) }})
	}
	if k.node.shutdown != nil {
		parts = append(parts, part{"node shutdown manager", k.node.shutdown.Run}, part{"stop job", k.node.shutdown.RunStopJob})
	}
	if err := runAll(ctx, parts); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	return nil
}

// runPods runs the pods until ctx is done. It first waits for the container runtime, because pods need the
// runtime's name and cgroup driver, and prepares the node's cgroups.
func (k *Kubelet) runPods(ctx context.Context) error {
	detector := hostcgroups.Detector{Runtime: k.cri.Runtime, Platform: k.pods.platform, Systemd: k.cfg.Cgroups.Systemd, LosingSupport: k.metrics.Node.LosingSupport}
	if err := detector.Detect(ctx); err != nil {
		return err
	}
	if err := k.node.cgroups.Prepare(); err != nil {
		k.events.NodeWarning("KubeletSetupFailed", err.Error())
		return err
	}
	if k.kube != nil && k.cgroups != nil && k.cfg.Reserved.Enforces(config.EnforcePods) {
		k.events.NodeNormal("NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
	}
	// Containers that run already may have an outdated CPU set.
	k.resources.UpdateCPUSets(ctx)
	return runAll(ctx, []part{
		{"system processes", k.node.cgroups.MoveSystemProcesses},
		{"workers", k.workers.Run},
		{"services", k.pods.services.Run},
		{"sources", k.sources.Run},
		{"clean-up", k.cleanUp},
	})
}

// cleanUp removes what is left of pods that were deleted while the kubelet was not running, and then returns;
// mirror pods are reconciled until ctx is done. It first waits until all sources have delivered their pods,
// because a pod that is not delivered yet would be treated as deleted.
func (k *Kubelet) cleanUp(ctx context.Context) error {
	select {
	case <-k.pods.synced.Done():
	case <-ctx.Done():
		return nil
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	if k.pods.mirrors != nil {
		wait.Go(func() { _ = k.pods.mirrors.Run(ctx) })
	}
	if err := k.workers.TerminateOrphans(ctx); err != nil && ctx.Err() == nil {
		k.log.Warn("finding pods that were deleted while the kubelet was stopped failed; their containers continue to run, retrying at the next start of the kubelet", "err", err)
	}
	if k.kube != nil {
		k.resources.ReconcileClaims(ctx)
	}
	return nil
}

// part is a part of the kubelet with its name in errors. run runs until its context is done.
type part struct {
	name string
	run  func(context.Context) error
}

// runAll runs parts concurrently until ctx is done or one of them fails, cancels the others, and returns when
// all have stopped. It returns the first error, or nil if ctx is done. A part may return nil earlier without
// stopping the others.
func runAll(ctx context.Context, parts []part) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, len(parts))
	var wait sync.WaitGroup
	for _, p := range parts {
		wait.Go(func() {
			if err := p.run(ctx); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("%s: %w", p.name, err)
			}
		})
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
