// Package controllers runs Kubernetes' controllers: control loops that bring
// what is towards what the API's objects ask for. Each has a folder; this
// package composes them, in the process of the API server or as
// kube-controller-manager.
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
	"k8s.io/utils/clock"

	"hyperkube/components/controllers/csrsigning"
	"hyperkube/components/controllers/garbagecollector"
	"hyperkube/components/controllers/horizontalpodautoscaling"
	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/nodelifecycle"
	"hyperkube/components/controllers/serviceaccounttoken"
	"hyperkube/internal/client"
	"hyperkube/internal/leader"
	"hyperkube/internal/measure"
)

// Config says what to run and what the single controllers need.
type Config struct {
	// Clients are the controller manager's own; their Informers feed all
	// controllers. Whoever composes the process starts the informers after
	// New.
	Clients *client.Clients
	// Builder makes each controller's clients. Nil: all use Clients.
	Builder client.Builder
	// Controllers to run, in the syntax of upstream's --controllers: "*" is
	// all that are on by default, "foo" is foo, "-foo" is without foo. Empty
	// means "*".
	Controllers []string

	// AllocateNodeCIDRs gives each Node a part of ClusterCIDRs.
	AllocateNodeCIDRs bool
	// ClusterCIDRs are the pods', one or one of each IP family.
	ClusterCIDRs []netip.Prefix
	// NodeCIDRMaskSizeIPv4 and -IPv6 are the prefix lengths of a Node's part;
	// zero means 24 and 64.
	NodeCIDRMaskSizeIPv4, NodeCIDRMaskSizeIPv6 int
	// ServiceCIDRs are never given to Nodes.
	ServiceCIDRs []netip.Prefix

	// RootCA are the certificates, in PEM, by which pods verify the API
	// server. Empty: they are not published.
	RootCA []byte

	// SecretTokens signs the tokens of service accounts that are kept in
	// Secrets. Nil: those Secrets stay without.
	SecretTokens serviceaccounttoken.Signer

	// Signing says who signs approved requests for certificates. Without
	// authorities nobody does.
	Signing csrsigning.Config

	// Autoscaling tunes how workloads are sized; its clients are made here.
	Autoscaling horizontalpodautoscaling.Config

	// Concurrency is how many objects a controller works on at once, by the
	// controller's name; those not named take upstream's default.
	Concurrency map[string]int
	// MaxEndpointsPerSlice is how many endpoints an EndpointSlice may have;
	// zero means 100.
	MaxEndpointsPerSlice int32

	// NamespaceDelay is how long a namespace's deletion is left alone at
	// first, so that all of several API servers have heard of it. Zero is
	// right when there is one, in this process; upstream has 5 s.
	NamespaceDelay time.Duration
	// TerminatedPodThreshold is how many finished pods are kept; zero means
	// all.
	TerminatedPodThreshold int
	// NodeLifecycle tunes how silent Nodes are treated.
	NodeLifecycle nodelifecycle.Config
	// NoDynamicProvisioning leaves claims without a volume alone.
	NoDynamicProvisioning bool
	// NoForceDetach leaves volumes attached that a silent node says are in use.
	NoForceDetach bool
	// TokenCleanUpPeriod is for how long nobody must have used a token in a
	// Secret before it goes; zero means a year.
	TokenCleanUpPeriod time.Duration
	// Metadata gives the garbage collector a resource's informer. Nil: it
	// watches the metadata API. SharedInformers makes one for a process whose
	// informers are fed from memory.
	Metadata garbagecollector.Informer

	// Served tells whether the API server has a resource; controllers of
	// others are left out, for their informers would never sync. Nil: it has
	// all.
	Served func(schema.GroupVersionResource) bool

	// LeaderElect makes Run wait until it holds the Lease kube-system/
	// kube-controller-manager, and fail when it loses it.
	LeaderElect bool
	// Election tunes that; its zero value is upstream's default.
	Election leader.Election

	// Clock tells the time. Nil: the real one.
	Clock clock.PassiveClock
	// Log may be nil.
	Log *slog.Logger
}

// Manager runs controllers. Make it with New.
type Manager struct {
	cfg     Config
	log     *slog.Logger
	ready   chan struct{}
	running []*running

	registry *prometheus.Registry
	leaders  *measure.Leaders
}

// running is one controller with all it needs.
type running struct {
	name     string
	runner   runner
	recorder *control.Recorder
}

// runner is what every controller is.
type runner interface {
	Run(ctx context.Context) error
	Ready() <-chan struct{}
}

// New makes all controllers that cfg asks for, and with them asks for their
// informers.
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
	chosen, err := choose(cfg.Controllers)
	if err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg, log: cfg.Log, ready: make(chan struct{}), registry: prometheus.NewRegistry(), leaders: measure.NewLeaders()}
	queues := measure.NewQueues()
	started := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "running_managed_controllers", Help: "[BETA] Indicates where instances of a controller are currently running",
	}, []string{"name", "manager"})
	for _, c := range []prometheus.Collector{queues, m.leaders, started, cfg.Clients.Requests, measure.Build(nil)} {
		if err := m.registry.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	for _, d := range chosen {
		if cfg.Served != nil && slices.ContainsFunc(d.needs, func(r schema.GroupVersionResource) bool { return !cfg.Served(r) }) {
			cfg.Log.Info("controller left out: the API server lacks what it works on", "controller", d.name)
			continue
		}
		clients := cfg.Clients
		if cfg.Builder != nil && d.user != "" {
			if clients, err = cfg.Builder.For(d.user); err != nil {
				return nil, fmt.Errorf("clients of %s: %w", d.name, err)
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
				Queues:    queues,
			},
		})
		if err != nil {
			return nil, fmt.Errorf("making %s: %w", d.name, err)
		}
		if r == nil {
			continue // it has nothing to do with this Config
		}
		m.running = append(m.running, &running{name: d.name, runner: r, recorder: recorder})
		if d.counted {
			started.WithLabelValues(d.alias, component).Set(1)
		}
	}
	return m, nil
}

// Ready is closed once all controllers' informers are synced and their queues
// are worked on.
func (m *Manager) Ready() <-chan struct{} { return m.ready }

// Metrics are what the controllers tell of themselves.
func (m *Manager) Metrics() prometheus.Gatherer {
	return measure.Page(m.registry, measure.Library("endpoint_slice_"))
}

// Names are those of the controllers that run, in the order of their start.
func (m *Manager) Names() []string {
	var names []string
	for _, r := range m.running {
		names = append(names, r.name)
	}
	return names
}

// Run runs the controllers until ctx ends; it fails when one of them does, or
// when the leadership is lost.
func (m *Manager) Run(ctx context.Context) error {
	if m.cfg.LeaderElect {
		return m.lead(ctx)
	}
	return m.run(ctx)
}

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
				err = errors.New("ended though nobody asked it to")
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
