package telemetry

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Requests has the metrics of requests to the kubelet's HTTP servers. Its methods are safe for concurrent
// use. On a nil receiver they do nothing.
type Requests struct {
	total    *prometheus.CounterVec
	took     *prometheus.HistogramVec
	inflight *prometheus.GaugeVec
}

func (m *Requests) fill(s *set) {
	labels := []string{"method", "path", "server_type", "long_running"}
	m.total = s.counters(prefix+"http_requests_total", "[ALPHA] Number of the http requests received since the server started", labels...)
	m.took = s.histograms(prefix+"http_requests_duration_seconds", "[ALPHA] Duration in seconds to serve http requests", nil, labels...)
	m.inflight = s.gauges(prefix+"http_inflight_requests", "[ALPHA] Number of the inflight http requests", labels...)
}

// methods and paths are the methods and path prefixes that are labels of the metrics; all others are counted
// as "other". longRunning are the paths of requests that are not expected to finish soon.
var (
	methods = map[string]bool{
		http.MethodConnect: true, http.MethodDelete: true, http.MethodGet: true, http.MethodHead: true, http.MethodOptions: true,
		http.MethodPatch: true, http.MethodPost: true, http.MethodPut: true, http.MethodTrace: true,
	}
	paths = map[string]bool{
		"attach": true, "checkpoint": true, "configz": true, "containerLogs": true, "debug": true, "exec": true, "flagz": true, "healthz": true,
		"logs": true, "metrics": true, "metrics/cadvisor": true, "metrics/probes": true, "metrics/resource": true, "pods": true, "portForward": true,
		"run": true, "runningpods": true, "stats": true, "statusz": true,
	}
	longRunning = map[string]bool{"exec": true, "attach": true, "portforward": true, "debug": true}
)

// InstrumentHandler returns a handler that records the metrics of the requests that h serves. kind is the
// label of the server: "readwrite" or "readonly". On a nil receiver it returns h.
func (m *Requests) InstrumentHandler(h http.Handler, kind string) http.Handler {
	if m == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method, path := r.Method, root(r.URL.Path)
		if !methods[method] {
			method = "other"
		}
		if !paths[path] {
			path = "other"
		}
		labels := []string{method, path, kind, strconv.FormatBool(longRunning[path])}
		m.total.WithLabelValues(labels...).Inc()
		now := m.inflight.WithLabelValues(labels...)
		now.Inc()
		defer now.Dec()
		began := time.Now()
		defer func() { m.took.WithLabelValues(labels...).Observe(time.Since(began).Seconds()) }()
		h.ServeHTTP(w, r)
	})
}

// root returns the first element of a URL path, which is a metrics label. For paths below /metrics, such as
// /metrics/cadvisor, it returns the first two elements.
func root(path string) string {
	parts := strings.SplitN(strings.TrimPrefix(path, "/"), "/", 3)
	if parts[0] == "metrics" && len(parts) > 1 {
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}
