package proxy

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"hyperkube/internal/plainhttp"
	"hyperkube/internal/zpages"
)

// health serves /healthz, /metrics, and for load balancers the health of single
// services on ports of their own.
type health struct {
	healthz, metricsAddress string
	pages                   map[string]http.Handler
	metrics                 *metrics
	log                     *slog.Logger

	mu      sync.Mutex // guards what follows
	leaving bool       // the node is
	updated time.Time
	// families, by IPv6, are those whose rules are written.
	families map[bool]bool
	// unserved is told why the health of a service ("namespace/name") cannot be
	// served; nil: nobody is.
	unserved func(service string, port uint16, err error)
	// pending is since when something could not be written; zero: all is.
	pending  time.Time
	services map[string]*serviceHealth // by namespace/name
	// waiting are those whose port could not be listened on, as when it is another
	// process's now.
	waiting map[string]*serviceHealth
}

func newHealth(cfg Config, m *metrics) *health {
	return &health{
		healthz: cfg.HealthzAddress, metricsAddress: cfg.MetricsAddress, pages: pages(cfg),
		metrics: m, log: cfg.Log, services: map[string]*serviceHealth{}, waiting: map[string]*serviceHealth{},
		families: map[bool]bool{false: true},
	}
}

// pages of the metrics' address that tell of the proxy itself.
func pages(cfg Config) map[string]http.Handler {
	configuration := cfg.Configuration
	if configuration == nil {
		configuration = func() any { return effective(&cfg) }
	}
	out := map[string]http.Handler{
		"/flagz":   zpages.Flagz("kube-proxy", cfg.Flags),
		"/configz": zpages.Configz("kubeproxy.config.k8s.io", configuration),
	}
	known := append(slices.Collect(maps.Keys(out)), "/healthz", "/proxyMode", "/metrics", "/statusz")
	out["/statusz"] = zpages.Statusz("kube-proxy", known...)
	if cfg.Profiling {
		maps.Copy(out, zpages.Profiles())
		if cfg.Level != nil {
			maps.Copy(out, zpages.DebugFlags(cfg.Level))
		}
	}
	return out
}

// eligible takes note whether load balancers may send traffic to this node.
func (h *health) eligible(yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaving = !yes
}

func (h *health) failed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pending.IsZero() {
		h.pending = time.Now()
	}
}

// succeeded takes note that all is written, for families, by IPv6, besides those of
// before.
func (h *health) succeeded(families ...bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ipv6 := range families {
		h.families[ipv6] = true
	}
	h.updated, h.pending = time.Now(), time.Time{}
}

// tolerance is how long the rules may be behind before load balancers are told:
// twice upstream's default period of synchronization.
const tolerance = time.Minute

// healthy tells whether the rules are as they should be; mu is held.
func (h *health) healthy() bool {
	return !h.updated.IsZero() && (h.pending.IsZero() || time.Since(h.pending) < tolerance)
}

// start listens; the returned function ends all that serves.
func (h *health) start() (stop func(), err error) {
	var servers []*plainhttp.Server
	stop = func() {
		for _, s := range servers {
			s.Close()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, s := range h.services {
			s.close()
		}
		h.services = map[string]*serviceHealth{}
	}
	probes := http.NewServeMux()
	probes.HandleFunc("/healthz", h.serveHealthz)
	probes.HandleFunc("/livez", h.serveLivez)
	numbers := http.NewServeMux()
	numbers.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	numbers.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		fmt.Fprint(w, "iptables")
	})
	numbers.Handle("/metrics", promhttp.HandlerFor(h.metrics.registry, promhttp.HandlerOpts{}))
	for path, page := range h.pages {
		numbers.Handle(path, page)
	}
	for address, handler := range map[string]http.Handler{h.healthz: probes, h.metricsAddress: numbers} {
		if address == "" {
			continue
		}
		server, err := plainhttp.Serve(address, handler)
		if err != nil {
			stop()
			return nil, err
		}
		servers = append(servers, server)
	}
	return stop, nil
}

// report is what /healthz and /livez tell, in upstream's words.
type report struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyReport `json:"status,omitempty"` // by family
}

type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// report makes what is told now, and tells whether the node is leaving.
func (h *health) report() (r report, leaving bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r = report{LastUpdated: h.updated, CurrentTime: time.Now(), Healthy: h.healthy(), Status: map[string]familyReport{}}
	if !h.updated.IsZero() {
		for ipv6 := range h.families {
			r.Status[familyName(ipv6)] = familyReport{LastUpdated: h.updated, Healthy: r.Healthy}
		}
	}
	return r, h.leaving
}

// serveHealthz tells load balancers whether this node takes traffic: not when it
// is about to go, either.
func (h *health) serveHealthz(w http.ResponseWriter, _ *http.Request) {
	r, leaving := h.report()
	eligible := !leaving
	r.NodeEligible = &eligible
	h.metrics.healthz.WithLabelValues(strconv.Itoa(h.answer(w, r, r.Healthy && eligible))).Inc()
}

// serveLivez tells whether the proxy works, whatever becomes of the node.
func (h *health) serveLivez(w http.ResponseWriter, _ *http.Request) {
	r, _ := h.report()
	h.metrics.livez.WithLabelValues(strconv.Itoa(h.answer(w, r, r.Healthy))).Inc()
}

func (h *health) answer(w http.ResponseWriter, r report, ok bool) int {
	if ok {
		// As of now all is as it should be, whenever something changed last.
		r.LastUpdated = time.Now()
	}
	body, err := json.Marshal(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return http.StatusInternalServerError
	}
	return write(w, ok, body)
}

// write answers with a JSON document, and returns the status.
func write(w http.ResponseWriter, ok bool, body []byte) int {
	code := http.StatusOK
	if !ok {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body)
	return code
}
