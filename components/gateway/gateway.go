// Package gateway implements the Gateway API and Ingress: a controller that translates objects into a configuration, and a
// data plane that serves it. It runs in pods of the built-in image, which the add-on gateway installs.
//
// Package model defines the configuration, translate creates it from objects, dataplane serves it, and controller connects
// both with the API.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"hyperkube/components/gateway/controller"
	"hyperkube/components/gateway/dataplane"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/client"
	"hyperkube/internal/serving/plainhttp"
)

// Config configures a Gateway.
type Config struct {
	// Plane is the configuration of the data plane. New sets Metrics and Log.
	Plane dataplane.Config
	// Clients, Namespace, Owner and Selector are those of controller.Config.
	Clients          *client.Clients
	Namespace, Owner string
	Selector         map[string]string
	// Address is the listen address of /healthz, /readyz and /metrics.
	Address string
	// Lameduck is how long the gateway accepts connections after the context of Run is canceled. It is not ready during that
	// time, so that all nodes stop sending connections before it stops.
	Lameduck time.Duration
	Log      *slog.Logger
}

// Gateway runs the controller and the data plane of the gateway, and serves its health checks and metrics.
type Gateway struct {
	cfg        Config
	plane      *dataplane.Plane
	controller *controller.Controller
	registry   *prometheus.Registry
	stopping   chan struct{} // closed when Run begins to stop
}

// New validates cfg and returns a Gateway.
func New(cfg Config) (*Gateway, error) {
	if cfg.Address == "" {
		return nil, errors.New("the gateway requires an address for health checks and metrics")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	g := &Gateway{cfg: cfg, registry: prometheus.NewRegistry(), stopping: make(chan struct{})}
	g.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	g.cfg.Plane.Metrics, g.cfg.Plane.Log = g.registry, cfg.Log
	var err error
	if g.plane, err = dataplane.New(g.cfg.Plane); err != nil {
		return nil, err
	}
	g.controller, err = controller.New(controller.Config{
		Clients: cfg.Clients, Plane: g.plane, Namespace: cfg.Namespace, Owner: cfg.Owner, Selector: cfg.Selector, Log: cfg.Log,
	})
	return g, err
}

// Run serves until ctx is canceled and then for the duration of Lameduck, after which it waits for active requests. It
// returns an error if the controller or the health endpoint fails.
func (g *Gateway) Run(parent context.Context) error {
	health, err := plainhttp.Serve(g.cfg.Address, g.handler())
	if err != nil {
		return fmt.Errorf("serving health checks and metrics: %w", err)
	}
	defer health.Close()
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- g.controller.Run(ctx) }()
	defer g.plane.Stop()
	select {
	case err := <-failed:
		return err
	case <-health.Done():
		cancel()
		return errors.Join(health.Err(), <-failed)
	case <-parent.Done():
	}
	close(g.stopping)
	g.plane.Drain()
	g.cfg.Log.Info("gateway received the termination signal; it reports that it is not ready, accepts connections for the duration of lameduck, and exits when active requests have finished", "lameduck", g.cfg.Lameduck)
	// Endpoints still change while the gateway serves the last connections.
	select {
	case <-time.After(g.cfg.Lameduck):
	case err := <-failed:
		return err
	}
	cancel()
	return <-failed
}

// handler serves /healthz, /readyz and /metrics. /readyz fails before the objects of the cluster have been read, and
// while the gateway is stopping.
func (g *Gateway) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-g.stopping:
			http.Error(w, "the gateway is stopping", http.StatusServiceUnavailable)
			return
		default:
		}
		select {
		case <-g.controller.Ready():
			fmt.Fprint(w, "ok")
		default:
			http.Error(w, "the objects of the cluster have not been read yet", http.StatusServiceUnavailable)
		}
	})
	mux.Handle("/metrics", promhttp.HandlerFor(g.registry, promhttp.HandlerOpts{}))
	return mux
}

var _ lifecycle.Component = (*Gateway)(nil)
