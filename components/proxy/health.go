package proxy

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/proxy/rules"
)

// metrics have upstream's names.
type metrics struct {
	registry *prometheus.Registry
	duration prometheus.Histogram
	failures prometheus.Counter
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubeproxy_sync_proxy_rules_duration_seconds", Help: "How long writing the rules took.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubeproxy_sync_proxy_rules_iptables_restore_failures_total", Help: "How often writing the rules failed.",
		}),
	}
	m.registry.MustRegister(m.duration, m.failures, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// health serves /healthz, /metrics, and for load balancers the health of single
// services on ports of their own.
type health struct {
	healthz, metricsAddress string
	metrics                 *metrics
	log                     *slog.Logger

	mu       sync.Mutex // guards what follows
	healthy  bool
	updated  time.Time
	services map[string]*serviceHealth // by namespace/name
}

// serviceHealth is the health check port of one service.
type serviceHealth struct {
	port   uint16
	local  int
	server *http.Server
}

func newHealth(healthz, metricsAddress string, m *metrics, log *slog.Logger) *health {
	return &health{healthz: healthz, metricsAddress: metricsAddress, metrics: m, log: log, services: map[string]*serviceHealth{}}
}

func (h *health) failed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.healthy = false
}

func (h *health) succeeded() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.healthy, h.updated = true, time.Now()
}

// start listens; the returned function ends all that serves.
func (h *health) start() (stop func(), err error) {
	var servers []*http.Server
	stop = func() {
		for _, s := range servers {
			s.Close()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, s := range h.services {
			s.server.Close()
		}
		h.services = map[string]*serviceHealth{}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", h.serveHealthz)
	mux.HandleFunc("/livez", h.serveHealthz)
	for address, handler := range map[string]http.Handler{
		h.healthz:        mux,
		h.metricsAddress: promhttp.HandlerFor(h.metrics.registry, promhttp.HandlerOpts{}),
	} {
		if address == "" {
			continue
		}
		server, err := serve(address, handler)
		if err != nil {
			stop()
			return nil, err
		}
		servers = append(servers, server)
	}
	return stop, nil
}

func serve(address string, handler http.Handler) (*http.Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return server, nil
}

func (h *health) serveHealthz(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	healthy, updated := h.healthy, h.updated
	h.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(map[string]string{
		"lastUpdated": updated.Format(time.RFC3339), "currentTime": time.Now().Format(time.RFC3339),
	})
}

// healthCheckPorts returns, for those of the changed services that have one,
// the health check port and how many endpoints are on this node; nil for those
// that have none.
func (p *Proxy) healthCheckPorts(changed map[string]bool) map[string]*serviceHealth {
	out := map[string]*serviceHealth{}
	for key := range changed {
		out[key] = nil
		obj, there, err := p.services.GetIndexer().GetByKey(key)
		if err != nil || !there {
			continue
		}
		svc := obj.(*corev1.Service)
		if svc.Spec.HealthCheckNodePort == 0 {
			continue
		}
		s := &serviceHealth{port: uint16(svc.Spec.HealthCheckNodePort)}
		for _, ports := range []map[string][]*rules.Port{p.ports[false], p.ports[true]} {
			for _, port := range ports[key] {
				local := 0
				for _, e := range port.Endpoints {
					if e.Local {
						local++
					}
				}
				s.local = max(s.local, local)
			}
		}
		out[key] = s
	}
	return out
}

// serveServices brings the health check ports to what is wanted.
func (h *health) serveServices(wanted map[string]*serviceHealth) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, want := range wanted {
		have := h.services[key]
		if have != nil && want != nil && have.port == want.port {
			have.local = want.local
			continue
		}
		if have != nil {
			have.server.Close()
			delete(h.services, key)
		}
		if want == nil {
			continue
		}
		server, err := serve(fmt.Sprintf(":%d", want.port), h.serviceHandler(key))
		if err != nil {
			h.log.Error("the health of a service cannot be served", "service", key, "err", err)
			continue
		}
		want.server = server
		h.services[key] = want
	}
}

func (h *health) serviceHandler(key string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		local := 0
		if s := h.services[key]; s != nil {
			local = s.local
		}
		healthy := h.healthy
		h.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if local == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"service": key, "localEndpoints": local, "serviceProxyHealthy": healthy})
	}
}
