package proxy

import (
	"cmp"
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

	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/serving/plainhttp"
	"hyperkube/internal/serving/zpages"
)

// health serves the HTTP endpoints of the proxy: /healthz, /livez, /metrics and debug pages, and
// the health check ports of services, by which load balancers find the nodes that have endpoints.
type health struct {
	healthz, metricsAddress string
	pages                   map[string]http.Handler // debug pages by path, served on metricsAddress
	mode                    packetfilter.Mode
	metrics                 *metrics
	log                     *slog.Logger

	mu          sync.Mutex // guards the fields below
	nodeLeaving bool       // the node is being removed: /healthz fails
	updated     time.Time  // when all rules were last written; zero until the first time
	// families contains the IP families whose rules are written, keyed by IPv6.
	families map[bool]bool
	// onUnserved is called when the health check port of a service ("namespace/name") cannot be
	// served. It may be nil.
	onUnserved func(service string, port uint16, err error)
	// pending is the time since which writing rules fails. It is zero if all rules are written.
	pending  time.Time
	services map[string]*serviceHealth // served ports, keyed by namespace/name
	// waiting contains services whose port could not be listened on, for example because another
	// process uses it.
	waiting map[string]*serviceHealth
}

func newHealth(cfg Config, m *metrics) *health {
	return &health{
		healthz: cfg.HealthzAddress, metricsAddress: cfg.MetricsAddress, mode: cfg.PacketFilter, pages: debugHandlers(cfg),
		metrics: m, log: cfg.Log, services: map[string]*serviceHealth{}, waiting: map[string]*serviceHealth{},
		families: map[bool]bool{false: true},
	}
}

// debugHandlers returns the handlers of /flagz, /configz and other pages that the metrics address serves.
func debugHandlers(cfg Config) map[string]http.Handler {
	configuration := cfg.Configuration
	if configuration == nil {
		configuration = func() any { return effectiveConfig(&cfg) }
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

// setEligible sets whether load balancers may send traffic to this node, which /healthz reports.
func (h *health) setEligible(yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nodeLeaving = !yes
}

// recordFailure records that writing the rules failed. If it does not succeed within
// unhealthyAfter, /healthz and /livez fail.
func (h *health) recordFailure() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pending.IsZero() {
		h.pending = time.Now()
	}
}

// recordSuccess records that all rules are written now. families are IP families in use, true for
// IPv6; each is reported from now on.
func (h *health) recordSuccess(families ...bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ipv6 := range families {
		h.families[ipv6] = true
	}
	h.updated, h.pending = time.Now(), time.Time{}
}

// unhealthyAfter is how long rules may be outdated before load balancers are notified. It is twice
// upstream's default sync period.
const unhealthyAfter = time.Minute

// healthy reports whether the rules were written at least once and have not been outdated for
// unhealthyAfter. The caller must hold mu.
func (h *health) healthy() bool {
	return !h.updated.IsZero() && (h.pending.IsZero() || time.Since(h.pending) < unhealthyAfter)
}

// start listens on the health and metrics addresses, unless they are empty. The returned function
// stops these servers and those of health check ports. If one address fails, no server runs.
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
	mode := cmp.Or(h.mode, packetfilter.IPTables)
	numbers.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		fmt.Fprint(w, mode)
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

// report is the response body of /healthz and /livez, as in upstream.
type report struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyReport `json:"status,omitempty"` // keyed by IP family
}

// familyReport is the part of a report about one IP family.
type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// report returns the current report, and whether the node is being removed.
func (h *health) report() (r report, leaving bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r = report{LastUpdated: h.updated, CurrentTime: time.Now(), Healthy: h.healthy(), Status: map[string]familyReport{}}
	if !h.updated.IsZero() {
		for ipv6 := range h.families {
			r.Status[familyName(ipv6)] = familyReport{LastUpdated: h.updated, Healthy: r.Healthy}
		}
	}
	return r, h.nodeLeaving
}

// serveHealthz reports to load balancers whether this node accepts traffic. A node that is being
// removed does not.
func (h *health) serveHealthz(w http.ResponseWriter, _ *http.Request) {
	r, leaving := h.report()
	eligible := !leaving
	r.NodeEligible = &eligible
	h.metrics.healthz.WithLabelValues(strconv.Itoa(h.writeReport(w, r, r.Healthy && eligible))).Inc()
}

// serveLivez reports whether the proxy works, regardless of the node's state.
func (h *health) serveLivez(w http.ResponseWriter, _ *http.Request) {
	r, _ := h.report()
	h.metrics.livez.WithLabelValues(strconv.Itoa(h.writeReport(w, r, r.Healthy))).Inc()
}

// writeReport sends a report, with the status 200 if ok is true, and otherwise 503. It returns the
// status.
func (h *health) writeReport(w http.ResponseWriter, r report, ok bool) int {
	if ok {
		// All rules are up to date as of now, whenever the last change was.
		r.LastUpdated = time.Now()
	}
	body, err := json.Marshal(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return http.StatusInternalServerError
	}
	return write(w, ok, body)
}

// write sends a JSON body, with the status 200 if ok is true, and otherwise 503. It returns the
// status.
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
