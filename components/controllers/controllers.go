// Package controllers runs the Kubernetes controllers: control loops that reconcile the state of
// the cluster with the desired state in API objects. Each controller has a directory; this package
// runs them together, in the API server's process or as kube-controller-manager.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/utils/clock"

	"hyperkube/components/controllers/csrsigning"
	"hyperkube/components/controllers/garbagecollector"
	"hyperkube/components/controllers/horizontalpodautoscaling"
	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/loadbalancer"
	"hyperkube/components/controllers/nodelifecycle"
	"hyperkube/components/controllers/serviceaccounttoken"
	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/base/tracing"
	"hyperkube/internal/client"
	"hyperkube/internal/client/leaderelection"
	"hyperkube/internal/serving/componentmetrics"
)

// Config selects the controllers to run and configures them.
//
// Size: one field for each setting of kube-controller-manager that configures a controller.
type Config struct {
	// Clients are the controller manager's clients. All controllers use their Informers, which the
	// caller starts after New.
	Clients *client.Clients
	// Builder creates the clients of each controller. If nil, all controllers use Clients.
	Builder client.Builder
	// Controllers are the controllers to run, in the syntax of upstream's --controllers: "*" is all
	// that are on by default, "foo" is foo, "-foo" is without foo. Empty means "*".
	Controllers []string

	// AllocateNodeCIDRs allocates a pod CIDR from ClusterCIDRs to each Node.
	AllocateNodeCIDRs bool
	// ClusterCIDRs are the ranges of pod IPs: one, or one of each IP family.
	ClusterCIDRs []netip.Prefix
	// NodeCIDRMaskSizeIPv4 and NodeCIDRMaskSizeIPv6 are the prefix lengths of a Node's pod CIDRs;
	// zero means 24 and 64.
	NodeCIDRMaskSizeIPv4, NodeCIDRMaskSizeIPv6 int
	// ServiceCIDRs are never allocated to Nodes.
	ServiceCIDRs []netip.Prefix

	// RootCA contains the CA certificates, in PEM format, with which pods verify the API server. If
	// empty, they are not published.
	RootCA []byte

	// SecretTokens signs the service account tokens that are stored in Secrets. If nil, no tokens
	// are added to such Secrets.
	SecretTokens serviceaccounttoken.Signer

	// Signing configures the signers of approved CertificateSigningRequests. Without authorities,
	// no request is signed.
	Signing csrsigning.Config

	// Autoscaling configures the horizontal pod autoscaler. Its clients are set by New.
	Autoscaling horizontalpodautoscaling.Config

	// CloudProvider is External if a cloud controller manager runs. Then the load balancer of this package does not run.
	CloudProvider cloudprovider.Setting
	// LoadBalancer configures the load balancer for clusters without a cloud provider. It only runs if Controllers
	// contains its name.
	LoadBalancer loadbalancer.Config

	// Concurrency is the number of workers of each controller, by the controller's name.
	// Controllers that are not listed have upstream's default.
	Concurrency map[string]int
	// MaxEndpointsPerSlice is the maximum number of endpoints in an EndpointSlice; zero means 100.
	MaxEndpointsPerSlice int32

	// NamespaceDelay is how long the deletion of a namespace's content is delayed, so that all API
	// servers observe the deletion first. Upstream uses 5 s. Zero is correct for a single API
	// server in this process.
	NamespaceDelay time.Duration
	// TerminatedPodThreshold is the number of terminated pods to keep; zero keeps all.
	TerminatedPodThreshold int
	// NodeLifecycle configures how unresponsive Nodes are handled.
	NodeLifecycle nodelifecycle.Config
	// NoDynamicProvisioning disables dynamic volume provisioning.
	NoDynamicProvisioning bool
	// NoForceDetach keeps volumes attached that an unresponsive node reports as in use.
	NoForceDetach bool
	// TokenCleanUpPeriod is how long a token Secret must be unused before it is deleted; zero means
	// a year.
	TokenCleanUpPeriod time.Duration
	// Metadata returns the garbage collector's informer of a resource. If nil, the garbage
	// collector watches the metadata API. SharedInformers returns one for a process whose informers
	// read from an in-process API server.
	Metadata garbagecollector.Informer

	// Served reports whether the API server serves a resource. Controllers that need a resource
	// that is not served do not run, because their informers would never sync. If nil, all
	// resources are served.
	Served func(schema.GroupVersionResource) bool

	// LeaderElect makes Run wait until it holds the Lease kube-system/kube-controller-manager, and
	// return an error when it loses the Lease.
	LeaderElect bool
	// Election configures leader election; its zero value is upstream's default.
	Election leaderelection.Election

	// Tracing configures the export of traces. Nil disables it.
	Tracing *tracingapi.TracingConfiguration
	// Clock returns the current time. If nil, the real clock is used.
	Clock clock.PassiveClock
	// Log may be nil.
	Log *slog.Logger
}

// instrumentationScope is the instrumentation scope of the spans of controllers.
const instrumentationScope = "hyperkube/components/controllers"

// Manager runs the selected controllers in one process. Use New to create it.
type Manager struct {
	cfg     Config
	log     *slog.Logger
	ready   chan struct{}
	running []*runningController

	registry *prometheus.Registry
	leaders  *componentmetrics.Leaders
	queues   *componentmetrics.Queues
	traces   *tracing.Provider
}

// runningController is a controller that Run runs, with its event recorder.
type runningController struct {
	name     string
	runner   runner
	recorder *control.Recorder
}

// runner is the interface of all controllers. Run blocks until ctx is done. The channel of Ready is closed when the
// controller has synced its informers and processes changes.
type runner interface {
	Run(ctx context.Context) error
	Ready() <-chan struct{}
}

// New creates the controllers that cfg selects and requests their informers from cfg.Clients. The caller must start the
// informer factory afterwards and then call Run. Controllers are omitted if they need a resource that the API server
// does not serve, or if cfg does not configure them.
func New(cfg Config) (*Manager, error) {
	if cfg.Clients == nil {
		return nil, errors.New("controllers: clients are missing")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	chosen, err := chooseControllers(cfg.Controllers)
	if err != nil {
		return nil, err
	}
	if err := cfg.checkPool(chosen); err != nil {
		return nil, fmt.Errorf("--load-balancer-pool: %w", err)
	}
	m := &Manager{cfg: cfg, log: cfg.Log, ready: make(chan struct{}), registry: prometheus.NewRegistry(), leaders: componentmetrics.NewLeaders(), queues: componentmetrics.NewQueues()}
	started := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "running_managed_controllers", Help: "[BETA] Indicates where instances of a controller are currently running",
	}, []string{"name", "manager"})
	for _, c := range []prometheus.Collector{m.queues, m.leaders, started, cfg.Clients.Requests, componentmetrics.Build(nil)} {
		if err := m.registry.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	if m.traces, err = tracing.New(cfg.Tracing, component, ""); err != nil {
		return nil, err
	}
	for _, d := range chosen {
		if cfg.Served != nil && slices.ContainsFunc(d.needs, func(r schema.GroupVersionResource) bool { return !cfg.Served(r) }) {
			cfg.Log.Info("controller not started because the API server does not serve a resource that it needs; to start it, enable the resource and restart the controller manager", "controller", d.name)
			continue
		}
		clients := cfg.Clients
		if cfg.Builder != nil && d.user != "" {
			if clients, err = cfg.Builder.For(d.user); err != nil {
				return nil, fmt.Errorf("creating clients of %s: %w", d.name, err)
			}
		}
		recorder := control.NewRecorder(clients.Kube, d.source)
		workers := d.workers
		if n := cfg.Concurrency[d.name]; n > 0 {
			workers = n
		}
		r, err := d.make(&deps{
			Config:  cfg,
			clients: clients,
			env: control.Env{
				Kube:      clients.Kube,
				Informers: cfg.Clients.Informers,
				Events:    recorder,
				Clock:     cfg.Clock,
				Log:       cfg.Log,
				Workers:   workers,
				Metrics:   m.registry,
				Tracer:    m.traces.Tracer(instrumentationScope),
				Queues:    m.queues,
			},
		})
		if err != nil {
			return nil, fmt.Errorf("creating %s: %w", d.name, err)
		}
		if r == nil {
			continue // nothing to do with this Config
		}
		m.running = append(m.running, &runningController{name: d.name, runner: r, recorder: recorder})
		if d.hasStartedMetric {
			started.WithLabelValues(d.alias, component).Set(1)
		}
	}
	return m, nil
}

// checkPool returns an error if there is a load balancer pool, but the controller that assigns its addresses is not one
// of chosen or does not run.
func (c Config) checkPool(chosen []descriptor) error {
	switch {
	case c.LoadBalancer.Pool.IsEmpty():
		return nil
	case c.CloudProvider.IsExternal():
		return errors.New("with --cloud-provider=external, the cloud controller manager assigns the addresses of Services: remove one of the flags")
	case !slices.ContainsFunc(chosen, func(d descriptor) bool { return d.name == loadBalancerName }):
		return fmt.Errorf("%s is off: add it to --controllers", loadBalancerName)
	}
	return nil
}

// Ready returns a channel that is closed when the informers of all controllers are synced and their workers run.
func (m *Manager) Ready() <-chan struct{} { return m.ready }

// QueueDepth returns the number of keys that wait in the work queues of all controllers.
func (m *Manager) QueueDepth() float64 { return m.queues.Depth() }

// Metrics returns the metrics of the controllers for the path /metrics.
func (m *Manager) Metrics() prometheus.Gatherer {
	return componentmetrics.Page(m.registry, componentmetrics.Library("endpoint_slice_"))
}

// Names returns the names of the controllers that run, in the order of their start.
func (m *Manager) Names() []string {
	var names []string
	for _, r := range m.running {
		names = append(names, r.name)
	}
	return names
}

// Run runs the controllers until ctx is done. With leader election, it waits for the lease first. It returns an error
// when a controller fails or the lease is lost; the process should then exit and be started again.
func (m *Manager) Run(ctx context.Context) error {
	defer m.traces.Flush(m.log)
	if m.cfg.LeaderElect {
		return m.lead(ctx)
	}
	return m.run(ctx)
}

// run runs the controllers without leader election. If one returns before ctx is done, run stops the others and
// returns an error. It closes m.ready when all are ready.
func (m *Manager) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, r := range m.running {
		wait := r.recorder.Start(ctx)
		wg.Go(wait)
		wg.Go(func() {
			err := r.runner.Run(ctx)
			if err == nil && ctx.Err() == nil {
				err = errors.New("stopped unexpectedly")
			}
			if err != nil {
				cancel(fmt.Errorf("%s: %w", r.name, err))
			}
		})
	}
	wg.Go(func() {
		for _, r := range m.running {
			select {
			case <-r.runner.Ready():
			case <-ctx.Done():
				return
			}
		}
		close(m.ready)
	})
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
