// Package cloudcontroller is cloud-controller-manager: it runs the controllers of k8s.io/cloud-provider with a cloud
// provider. They initialize Nodes, delete Nodes of machines that do not exist anymore, and create load balancers and
// routes. The components of the cluster must run with --cloud-provider=external.
//
// The package local is a provider for machines without a cloud. Others are separate programs that use the same
// interface; they run in a hyperkube cluster like in any other.
//
// https://kubernetes.io/docs/concepts/architecture/cloud-controller/
package cloudcontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cloudprovider "k8s.io/cloud-provider"
	nodecontroller "k8s.io/cloud-provider/controllers/node"
	"k8s.io/cloud-provider/controllers/nodelifecycle"
	"k8s.io/cloud-provider/controllers/route"
	"k8s.io/cloud-provider/controllers/service"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	"k8s.io/controller-manager/pkg/features"

	"hyperkube/internal/client"
	"hyperkube/internal/client/leaderelection"
	"hyperkube/internal/serving/componentmetrics"
)

// component is the name of this component. It is also the name of its lease and part of its user agent.
const component = "cloud-controller-manager"

// Names of the controllers, which are upstream's.
const (
	cloudNode          = "cloud-node-controller"
	cloudNodeLifecycle = "cloud-node-lifecycle-controller"
	serviceLB          = "service-lb-controller"
	nodeRoute          = "node-route-controller"
)

// aliases are the names of the controllers that earlier versions of Kubernetes used. --controllers accepts both.
var aliases = map[string]string{"cloud-node": cloudNode, "cloud-node-lifecycle": cloudNodeLifecycle, "service": serviceLB, "route": nodeRoute}

// Names returns the names of all controllers.
func Names() []string { return []string{cloudNode, cloudNodeLifecycle, serviceLB, nodeRoute} }

// Config configures a Manager. Zero durations and numbers mean upstream's defaults.
type Config struct {
	// Clients are the API clients of all controllers. The caller starts their informers after New.
	Clients *client.Clients
	// Provider is the cloud. A controller whose part of the interface it does not support does not run.
	Provider cloudprovider.Interface
	// Controllers are the controllers to run, in the syntax of upstream's --controllers: "*" is all, "foo" is foo,
	// "-foo" is without foo. Empty means "*".
	Controllers []string
	// ClusterName is passed to the provider, which may use it to name load balancers and routes.
	ClusterName string
	// PodCIDRs are the ranges of pod IPs. Routes outside of them are not changed.
	PodCIDRs []netip.Prefix
	// Routes creates routes to the pod CIDRs of Nodes.
	Routes bool
	// NodeStatusUpdateFrequency is the period in which addresses of Nodes are updated, NodeMonitorPeriod that in which
	// the provider is asked about Nodes that are not ready, and RouteReconciliationPeriod that in which routes are
	// compared.
	NodeStatusUpdateFrequency, NodeMonitorPeriod, RouteReconciliationPeriod time.Duration
	// ServiceSyncs and NodeSyncs are the numbers of Services and Nodes that are processed at the same time.
	ServiceSyncs, NodeSyncs int
	// LeaderElect makes Run wait until it holds the lease, and return an error when it loses the lease.
	LeaderElect bool
	// Election configures leader election; its zero value is upstream's default.
	Election leaderelection.Election
	Log      *slog.Logger
}

// Manager runs the controllers.
type Manager struct {
	cfg     Config
	metrics *controllersmetrics.ControllerManagerMetrics
	running []controller
}

// controller is a controller that runs until ctx is done.
type controller struct {
	name string
	run  func(ctx context.Context)
}

// New creates the controllers without starting them, and adds their informers to those of cfg.Clients. It returns an
// error for an unknown controller, and if the provider does not support instances.
func New(cfg Config) (*Manager, error) {
	setDefaults(&cfg)
	selected, err := selectControllers(cfg.Controllers)
	if err != nil {
		return nil, err
	}
	// The controllers read features from the global feature gate of the process. Adding them twice has no effect.
	if err := features.SetupCurrentKubernetesSpecificFeatureGates(utilfeature.DefaultMutableFeatureGate); err != nil {
		return nil, fmt.Errorf("registering feature gates: %w", err)
	}
	controllersmetrics.Register()
	m := &Manager{cfg: cfg, metrics: controllersmetrics.NewControllerManagerMetrics(component)}
	if user, ok := cfg.Provider.(cloudprovider.InformerUser); ok {
		user.SetInformers(cfg.Clients.Informers)
	}
	for _, c := range []struct {
		name string
		make func() (func(context.Context), error)
	}{
		{cloudNode, m.newCloudNode}, {cloudNodeLifecycle, m.newCloudNodeLifecycle}, {serviceLB, m.newServiceLB}, {nodeRoute, m.newNodeRoute},
	} {
		if !selected[c.name] {
			continue
		}
		run, err := c.make()
		if err != nil {
			return nil, fmt.Errorf("creating %s: %w", c.name, err)
		}
		if run != nil {
			m.running = append(m.running, controller{c.name, run})
		}
	}
	return m, nil
}

// setDefaults sets upstream's defaults.
func setDefaults(cfg *Config) {
	for to, value := range map[*time.Duration]time.Duration{
		&cfg.NodeStatusUpdateFrequency: 5 * time.Minute, &cfg.NodeMonitorPeriod: 5 * time.Second, &cfg.RouteReconciliationPeriod: 10 * time.Second,
	} {
		if *to == 0 {
			*to = value
		}
	}
	for _, to := range []*int{&cfg.ServiceSyncs, &cfg.NodeSyncs} {
		if *to == 0 {
			*to = 1
		}
	}
	if cfg.ClusterName == "" {
		cfg.ClusterName = "kubernetes"
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
}

// selectControllers returns the controllers that a value of --controllers selects.
func selectControllers(flag []string) (map[string]bool, error) {
	if len(flag) == 0 {
		flag = []string{"*"}
	}
	on, off := map[string]bool{}, map[string]bool{}
	for _, f := range flag {
		name, minus := strings.CutPrefix(strings.TrimSpace(f), "-")
		if full, ok := aliases[name]; ok {
			name = full
		}
		switch {
		case name == "*" && !minus:
			for _, n := range Names() {
				on[n] = true
			}
		case !slices.Contains(Names(), name):
			return nil, fmt.Errorf("--controllers: %q is not in the list of known controllers: %s", name, strings.Join(Names(), ", "))
		case minus:
			off[name] = true
		default:
			on[name] = true
		}
	}
	for name := range off {
		delete(on, name)
	}
	return on, nil
}

// newCloudNode returns the controller that initializes Nodes.
func (m *Manager) newCloudNode() (func(context.Context), error) {
	c, err := nodecontroller.NewCloudNodeController(m.cfg.Clients.Informers.Core().V1().Nodes(), m.cfg.Clients.Kube, m.cfg.Provider,
		m.cfg.NodeStatusUpdateFrequency, int32(m.cfg.NodeSyncs), int32(m.cfg.NodeSyncs))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { c.RunWithContext(ctx, m.metrics) }, nil
}

// newCloudNodeLifecycle returns the controller that deletes the Nodes of machines that do not exist anymore.
func (m *Manager) newCloudNodeLifecycle() (func(context.Context), error) {
	c, err := nodelifecycle.NewCloudNodeLifecycleController(m.cfg.Clients.Informers.Core().V1().Nodes(), m.cfg.Clients.Kube, m.cfg.Provider,
		m.cfg.NodeMonitorPeriod, m.cfg.NodeSyncs)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { c.Run(ctx, m.metrics) }, nil
}

// newServiceLB returns the controller of load balancers, or nil if the provider has none.
func (m *Manager) newServiceLB() (func(context.Context), error) {
	if _, ok := m.cfg.Provider.LoadBalancer(); !ok {
		m.cfg.Log.Info("the cloud provider has no load balancers; Services of type LoadBalancer stay pending", "provider", m.cfg.Provider.ProviderName())
		return nil, nil
	}
	core := m.cfg.Clients.Informers.Core().V1()
	c, err := service.New(m.cfg.Provider, m.cfg.Clients.Kube, core.Services(), core.Nodes(), m.cfg.ClusterName, utilfeature.DefaultFeatureGate)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { c.Run(ctx, m.cfg.ServiceSyncs, m.metrics) }, nil
}

// newNodeRoute returns the controller of routes. It returns nil if routes are not configured or the provider has none.
func (m *Manager) newNodeRoute() (func(context.Context), error) {
	routes, ok := m.cfg.Provider.Routes()
	if !ok || !m.cfg.Routes {
		return nil, nil
	}
	if len(m.cfg.PodCIDRs) == 0 {
		return nil, errors.New("--cluster-cidr is required: routes outside of the range of pod IPs must not be changed")
	}
	var ranges []*net.IPNet
	for _, p := range m.cfg.PodCIDRs {
		p = p.Masked()
		ranges = append(ranges, &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
	}
	c, err := route.New(routes, m.cfg.Clients.Kube, m.cfg.Clients.Informers.Core().V1().Nodes(), m.cfg.ClusterName, ranges)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { c.Run(ctx, m.cfg.RouteReconciliationPeriod, m.metrics) }, nil
}

// Running returns the names of the controllers that Run runs.
func (m *Manager) Running() []string {
	var names []string
	for _, c := range m.running {
		names = append(names, c.name)
	}
	return names
}

// Metrics returns the metrics of the controllers for the path /metrics.
func (m *Manager) Metrics() prometheus.Gatherer {
	return componentmetrics.PageWithLibraries()
}

// Run runs the controllers until ctx is done. With leader election, it waits for the lease first, and returns an error
// when the lease is lost; the process should then exit and be started again. The informers must have been started.
func (m *Manager) Run(ctx context.Context) error {
	if !m.cfg.LeaderElect {
		return m.run(ctx)
	}
	return leaderelection.Run(ctx, m.cfg.Election.WithDefaults(component), m.cfg.Clients.Kube, nil, m.run)
}

// run runs the controllers without leader election. It returns an error if one of them stops before ctx is done.
func (m *Manager) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m.cfg.Provider.Initialize(builder{m.cfg.Clients}, ctx.Done())
	var wg sync.WaitGroup
	for _, c := range m.running {
		wg.Go(func() {
			c.run(ctx)
			if ctx.Err() == nil {
				cancel(fmt.Errorf("%s: stopped unexpectedly", c.name))
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// builder gives all controllers of a provider the same clients. It implements cloudprovider.ControllerClientBuilder.
type builder struct {
	clients *client.Clients
}

// Config returns the client configuration of the cloud controller manager.
func (b builder) Config(string) (*rest.Config, error) { return rest.CopyConfig(b.clients.REST), nil }

// ConfigOrDie returns the client configuration of the cloud controller manager.
func (b builder) ConfigOrDie(string) *rest.Config { return rest.CopyConfig(b.clients.REST) }

// Client returns the client of the cloud controller manager.
func (b builder) Client(string) (kubernetes.Interface, error) { return b.clients.Kube, nil }

// ClientOrDie returns the client of the cloud controller manager.
func (b builder) ClientOrDie(string) kubernetes.Interface { return b.clients.Kube }
