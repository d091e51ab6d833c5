package metrics

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// requests contains the metrics of requests by verb and resource: number, duration, sizes of
// responses, and active long-running requests. It is safe for concurrent use.
type requests struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	sli      *prometheus.HistogramVec
	sizes    *prometheus.HistogramVec
	watchers *prometheus.GaugeVec

	// Looking up a metric by its labels costs more than counting, so metrics are cached.
	mu        sync.RWMutex
	completed map[requestKey]*requestMetrics
	running   map[runningKey]prometheus.Gauge
}

// requestKey contains the labels of a completed request.
type requestKey struct {
	verb, group, version, resource, subresource, scope string
	dryRun                                             bool
	code                                               int
}

// runningKey contains the labels of an active long-running request.
type runningKey struct{ verb, group, version, resource, subresource, scope string }

// requestMetrics contains the metrics of completed requests with the same labels.
type requestMetrics struct {
	total    prometheus.Counter
	duration prometheus.Observer
	// sli is nil for long-running requests, size is nil for writes.
	sli, size prometheus.Observer
}

// maxKept is the maximum number of cached metrics per kind, because clients choose some of the
// labels. Further ones are looked up by their labels each time.
const maxKept = 8192

// newRequests creates the metrics of requests by verb and resource. New registers them.
func newRequests() *requests {
	labels := []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	return &requests{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total",
			Help: "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
		}, []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_request_duration_seconds",
			Help: "[STABLE] Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3,
				4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"}),
		sli: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_request_sli_duration_seconds",
			Help: "[ALPHA] Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component.",
			Buckets: []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3,
				4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, labels),
		watchers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests",
			Help: "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.",
		}, labels),
		sizes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_response_sizes", Help: "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
			Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
		}, labels),
		completed: map[requestKey]*requestMetrics{},
		running:   map[runningKey]prometheus.Gauge{},
	}
}

// collectors returns all metrics of requests by verb and resource, which New registers.
func (r *requests) collectors() []prometheus.Collector {
	return []prometheus.Collector{r.total, r.duration, r.sli, r.sizes, r.watchers}
}

// of returns the metrics for completed requests with the labels k. long means that the requests are long-running, for
// which there is no SLI; resource means that they are for resources. The result is cached, up to maxKept.
func (r *requests) of(k requestKey, long, resource bool) *requestMetrics {
	r.mu.RLock()
	m := r.completed[k]
	r.mu.RUnlock()
	if m != nil {
		return m
	}
	dry := ""
	if k.dryRun {
		dry = "All"
	}
	m = &requestMetrics{
		total:    r.total.WithLabelValues(k.verb, dry, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver", strconv.Itoa(k.code)),
		duration: r.duration.WithLabelValues(k.verb, dry, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver"),
	}
	if !long {
		m.sli = r.sli.WithLabelValues(k.verb, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver")
	}
	if resource && (k.verb == "GET" || k.verb == "LIST") {
		m.size = r.sizes.WithLabelValues(k.verb, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver")
	}
	r.mu.Lock()
	if len(r.completed) < maxKept {
		r.completed[k] = m
	}
	r.mu.Unlock()
	return m
}

// longRunning returns the gauge of active long-running requests with the labels k.
func (r *requests) longRunning(k runningKey) prometheus.Gauge {
	r.mu.RLock()
	g := r.running[k]
	r.mu.RUnlock()
	if g != nil {
		return g
	}
	g = r.watchers.WithLabelValues(k.verb, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver")
	r.mu.Lock()
	if len(r.running) < maxKept {
		r.running[k] = g
	}
	r.mu.Unlock()
	return g
}
