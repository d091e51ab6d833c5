// Package metrics provides the API server's request metrics with upstream's stable names, in a
// separate registry.
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/
package metrics

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/internal/serving/componentmetrics"
)

// Metrics contains the metrics of one API server. It is safe for concurrent use.
type Metrics struct {
	// Served reports whether a resource is served. Requests for other resources are counted without
	// their names, because clients could use any number of names, and invalid ones. Nil means that
	// all are served. It must be set before requests arrive.
	Served func(*apirequest.RequestInfo) bool

	registry           *prometheus.Registry
	total              *prometheus.CounterVec
	duration           *prometheus.HistogramVec
	sli                *prometheus.HistogramVec
	inflight           *prometheus.GaugeVec
	watchers           *prometheus.GaugeVec
	sizes              *prometheus.HistogramVec
	deprecated         *prometheus.GaugeVec
	terminated         *prometheus.CounterVec
	self               *prometheus.CounterVec
	access             *access
	watches            *watches
	etcd               *etcd
	stages             *stages
	impersonation      *impersonation
	bodies             *bodies
	connections        *connections
	readOnly, mutating prometheus.Gauge
	queued             *prometheus.GaugeVec
	discoveries        prometheus.Counter
	queuedReadOnly     prometheus.Gauge
	queuedMutating     prometheus.Gauge

	// Looking up a metric by its labels costs more than counting, so metrics are cached.
	mu       sync.RWMutex
	requests map[requestKey]*requestMetrics
	running  map[runningKey]prometheus.Gauge
}

type requestKey struct {
	verb, group, version, resource, subresource, scope string
	dryRun                                             bool
	code                                               int
}

type runningKey struct{ verb, group, version, resource, subresource, scope string }

type requestMetrics struct {
	total    prometheus.Counter
	duration prometheus.Observer
	// sli is nil for long-running requests, size is nil for writes.
	sli, size prometheus.Observer
}

// maxKept limits the size of the cache, because clients choose some of the labels.
const maxKept = 8192

// New returns Metrics, including those of the Go runtime and the process.
func New() *Metrics {
	labels := []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
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
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests",
			Help: "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
		}, []string{"request_kind"}),
		watchers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests",
			Help: "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.",
		}, labels),
		sizes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_response_sizes", Help: "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
			Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
		}, labels),
		deprecated: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_requested_deprecated_apis",
			Help: "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
		}, []string{"group", "version", "resource", "subresource", "removed_release"}),
		terminated: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_terminations_total", Help: "[ALPHA] Number of requests which apiserver terminated in self-defense.",
		}, []string{"verb", "group", "version", "resource", "subresource", "scope", "component", "code"}),
		self: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_selfrequest_total", Help: "[ALPHA] Counter of apiserver self-requests broken out for each verb, API resource and subresource.",
		}, []string{"verb", "group", "resource", "subresource"}),
		queued: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inqueue_requests", Help: "[ALPHA] Maximal number of queued requests in this apiserver per request kind in last second.",
		}, []string{"request_kind"}),
		discoveries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "aggregator_discovery_aggregation_count_total", Help: "[ALPHA] Counter of number of times discovery was aggregated",
		}),
		access: newAccess(), watches: newWatches(), etcd: newEtcd(), stages: newStages(), impersonation: newImpersonation(), bodies: newBodies(), connections: newConnections(),
		requests: map[requestKey]*requestMetrics{},
		running:  map[runningKey]prometheus.Gauge{},
	}
	m.readOnly, m.mutating = m.inflight.WithLabelValues("readOnly"), m.inflight.WithLabelValues("mutating")
	m.queuedReadOnly, m.queuedMutating = m.queued.WithLabelValues("readOnly"), m.queued.WithLabelValues("mutating")
	m.registry.MustRegister(m.total, m.duration, m.sli, m.sizes, m.inflight, m.watchers, m.deprecated, m.terminated, m.self, m.queued, m.discoveries, m.stages.took, m.bodies.sizes, componentmetrics.Build(nil))
	m.registry.MustRegister(m.access.collectors()...)
	m.registry.MustRegister(m.watches.collectors()...)
	m.registry.MustRegister(m.etcd.collectors()...)
	m.registry.MustRegister(m.impersonation.collectors()...)
	m.registry.MustRegister(m.connections.collectors()...)
	m.registry.MustRegister(unvalidated()...)
	return m
}

// Registry returns the registry for further metrics of the server.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Handler returns a handler that serves all metrics.
func (m *Metrics) Handler() http.Handler {
	return componentmetrics.Handler(componentmetrics.PageWithLibraries(m.registry))
}

// scope returns the scope label of a request: resource, namespace or cluster.
func scope(info *apirequest.RequestInfo) string {
	switch {
	case !info.IsResourceRequest:
		return ""
	case info.Name != "" || info.Verb == "create":
		return "resource"
	case info.Namespace != "":
		return "namespace"
	}
	return "cluster"
}

// verb returns the verb label of a request, in upper case as in upstream.
func verb(info *apirequest.RequestInfo, method string) string {
	if !info.IsResourceRequest {
		switch method {
		case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodConnect:
			return method
		}
		return "other"
	}
	switch info.Verb {
	case "create":
		return "POST"
	case "update":
		return "PUT"
	case "get":
		return "GET"
	case "list":
		return "LIST"
	case "watch":
		return "WATCH"
	case "patch":
		return "PATCH"
	case "delete":
		return "DELETE"
	case "deletecollection":
		return "DELETECOLLECTION"
	}
	return "other"
}

// InFlight counts a request that is not long-running until the returned function is called.
func (m *Metrics) InFlight(readOnly bool) func() {
	g := m.mutating
	if readOnly {
		g = m.readOnly
	}
	g.Inc()
	return g.Dec
}

// Queued counts a request that enters or leaves a queue.
func (m *Metrics) Queued(readOnly, waits bool) {
	g := m.queuedMutating
	if readOnly {
		g = m.queuedReadOnly
	}
	if waits {
		g.Inc()
	} else {
		g.Dec()
	}
}

// Discovered counts a rebuild of the discovery documents.
func (m *Metrics) Discovered() { m.discoveries.Inc() }

// Terminated counts a request that the server rejected or aborted to protect itself.
func (m *Metrics) Terminated(info *apirequest.RequestInfo, method string, code int) {
	k := runningKey{verb(info, method), info.APIGroup, info.APIVersion, info.Resource, info.Subresource, scope(info)}
	if m.unknown(info) {
		k = runningKey{verb: k.verb, scope: k.scope}
	}
	m.terminated.WithLabelValues(k.verb, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver", strconv.Itoa(code)).Inc()
}

// ProxyFailed counts a request for an aggregated server that could not be proxied. The metric includes the
// resource only if the server is known to serve it.
func (m *Metrics) ProxyFailed(info *apirequest.RequestInfo, method string, known bool, code int) {
	k := runningKey{verb: verb(info, method), group: info.APIGroup, version: info.APIVersion, scope: scope(info)}
	if known {
		k.resource, k.subresource = info.Resource, info.Subresource
	}
	m.terminated.WithLabelValues(k.verb, k.group, k.version, k.resource, k.subresource, k.scope, "aggregator", strconv.Itoa(code)).Inc()
}

// Self counts a request that the server sent to itself.
func (m *Metrics) Self(info *apirequest.RequestInfo, method string) {
	if m.unknown(info) || !info.IsResourceRequest {
		m.self.WithLabelValues(verb(info, method), "", "", "").Inc()
		return
	}
	m.self.WithLabelValues(verb(info, method), info.APIGroup, info.Resource, info.Subresource).Inc()
}

// Deprecated records the use of a deprecated API.
func (m *Metrics) Deprecated(info *apirequest.RequestInfo, removed string) {
	m.deprecated.WithLabelValues(info.APIGroup, info.APIVersion, info.Resource, info.Subresource, removed).Set(1)
}

// Answer describes the response to a request.
type Answer struct {
	// Method is the HTTP method, Code the response status.
	Method string
	Code   int
	// Size is the size of the response body in bytes.
	Size int
	// Took is the duration from the receipt of the request to the end of the response.
	Took time.Duration
	// DryRun is set for dry-run requests, Long for long-running ones.
	DryRun, Long bool
}

// Request records a completed request.
func (m *Metrics) Request(info *apirequest.RequestInfo, a Answer) {
	k := requestKey{
		verb: verb(info, a.Method), group: info.APIGroup, version: info.APIVersion, resource: info.Resource,
		subresource: info.Subresource, scope: scope(info), dryRun: a.DryRun, code: a.Code,
	}
	if !info.IsResourceRequest {
		k.subresource = ""
		if a.Code == http.StatusNotFound {
			k.verb = "other"
		}
	} else if m.unknown(info) {
		k = requestKey{verb: k.verb, scope: k.scope, dryRun: a.DryRun, code: a.Code}
	}
	m.mu.RLock()
	r := m.requests[k]
	m.mu.RUnlock()
	if r == nil {
		dry := ""
		if a.DryRun {
			dry = "All"
		}
		r = &requestMetrics{
			total:    m.total.WithLabelValues(k.verb, dry, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver", strconv.Itoa(a.Code)),
			duration: m.duration.WithLabelValues(k.verb, dry, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver"),
		}
		if !a.Long {
			r.sli = m.sli.WithLabelValues(k.verb, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver")
		}
		if info.IsResourceRequest && (k.verb == "GET" || k.verb == "LIST") {
			r.size = m.sizes.WithLabelValues(k.verb, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver")
		}
		m.mu.Lock()
		if len(m.requests) < maxKept {
			m.requests[k] = r
		}
		m.mu.Unlock()
	}
	r.total.Inc()
	r.duration.Observe(a.Took.Seconds())
	if r.sli != nil {
		r.sli.Observe(a.Took.Seconds())
	}
	if r.size != nil {
		r.size.Observe(float64(a.Size))
	}
}

// LongRunning counts a long-running request until the returned function is called.
func (m *Metrics) LongRunning(info *apirequest.RequestInfo, method string) func() {
	k := runningKey{verb(info, method), info.APIGroup, info.APIVersion, info.Resource, info.Subresource, scope(info)}
	if m.unknown(info) {
		k = runningKey{verb: k.verb, scope: k.scope}
	}
	m.mu.RLock()
	g := m.running[k]
	m.mu.RUnlock()
	if g == nil {
		g = m.watchers.WithLabelValues(k.verb, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver")
		m.mu.Lock()
		if len(m.running) < maxKept {
			m.running[k] = g
		}
		m.mu.Unlock()
	}
	g.Inc()
	return g.Dec
}

func (m *Metrics) unknown(info *apirequest.RequestInfo) bool {
	return info.IsResourceRequest && m.Served != nil && !m.Served(info)
}
