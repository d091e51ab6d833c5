// Package metrics provides the API server's request metrics with upstream's stable names, in a
// separate registry.
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/
package metrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/internal/serving/componentmetrics"
)

// Metrics contains the metrics of one API server in a separate registry. It is safe for concurrent
// use.
type Metrics struct {
	// Served reports whether the resource of a request is served. Requests for other resources are
	// counted without the resource's name: clients could use any number of names, and each would
	// create metrics. Nil means that all are served. It must be set before requests arrive.
	Served func(*apirequest.RequestInfo) bool

	registry      *prometheus.Registry
	requests      *requests
	loads         *loads
	deprecated    *prometheus.GaugeVec
	terminated    *prometheus.CounterVec
	self          *prometheus.CounterVec
	access        *access
	watches       *watches
	etcd          *etcd
	stages        *stages
	impersonation *impersonation
	bodies        *bodies
	connections   *connections
	discoveries   prometheus.Counter
	totals        totals
}

// New returns Metrics whose registry also contains the metrics of the Go runtime and the process.
func New() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
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
		discoveries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "aggregator_discovery_aggregation_count_total", Help: "[ALPHA] Counter of number of times discovery was aggregated",
		}),
		access: newAccess(), watches: newWatches(), etcd: newEtcd(), stages: newStages(), impersonation: newImpersonation(), bodies: newBodies(), connections: newConnections(),
		requests: newRequests(), loads: newLoads(),
	}
	m.registry.MustRegister(m.deprecated, m.terminated, m.self, m.discoveries, m.stages.took, m.bodies.sizes, componentmetrics.Build(nil))
	m.registry.MustRegister(m.requests.collectors()...)
	m.registry.MustRegister(m.loads.collectors()...)
	m.registry.MustRegister(m.access.collectors()...)
	m.registry.MustRegister(m.watches.collectors()...)
	m.registry.MustRegister(m.etcd.collectors()...)
	m.registry.MustRegister(m.impersonation.collectors()...)
	m.registry.MustRegister(m.connections.collectors()...)
	m.registry.MustRegister(unvalidated()...)
	return m
}

// Registry returns the registry, in which other parts of the server register their metrics.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Handler returns a handler that serves all metrics of the registry and those that upstream's
// libraries register globally.
func (m *Metrics) Handler() http.Handler {
	return componentmetrics.Handler(componentmetrics.PageWithLibraries(m.registry))
}

// scope returns the label scope of a request: "resource" for a single object, "namespace" or "cluster" for a
// collection, or "" if the request is not for a resource.
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

// verb returns the label verb of a request in upper case, as in upstream. method is the HTTP
// method, which is the verb of a request that is not for a resource. Unknown verbs and methods are
// "other".
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

// InFlight counts a request that is not long-running as in flight, until the caller calls the
// returned function.
func (m *Metrics) InFlight(readOnly bool) func() {
	g := m.loads.mutating
	if readOnly {
		g = m.loads.readOnly
	}
	g.Inc()
	return g.Dec
}

// Queued counts a request that enters (waits is true) or leaves (false) a queue of API Priority and
// Fairness.
func (m *Metrics) Queued(readOnly, waits bool) {
	g := m.loads.queuedMutating
	if readOnly {
		g = m.loads.queuedReadOnly
	}
	if waits {
		g.Inc()
	} else {
		g.Dec()
	}
}

// Discovered counts that the discovery documents were built again.
func (m *Metrics) Discovered() { m.discoveries.Inc() }

// Terminated counts a request that the server rejected or aborted to protect itself, for example after a timeout or
// because of too many requests. code is the response status. The names of resources that are not served are not
// recorded.
func (m *Metrics) Terminated(info *apirequest.RequestInfo, method string, code int) {
	k := runningKey{verb(info, method), info.APIGroup, info.APIVersion, info.Resource, info.Subresource, scope(info)}
	if unknown(m.Served, info) {
		k = runningKey{verb: k.verb, scope: k.scope}
	}
	m.terminated.WithLabelValues(k.verb, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver", strconv.Itoa(code)).Inc()
}

// ProxyFailed counts a request for an aggregated API that could not be sent to its server. The metric contains the
// resource only if known is set, because the client could choose the name freely otherwise. code is the response
// status.
func (m *Metrics) ProxyFailed(info *apirequest.RequestInfo, method string, known bool, code int) {
	k := runningKey{verb: verb(info, method), group: info.APIGroup, version: info.APIVersion, scope: scope(info)}
	if known {
		k.resource, k.subresource = info.Resource, info.Subresource
	}
	m.terminated.WithLabelValues(k.verb, k.group, k.version, k.resource, k.subresource, k.scope, "aggregator", strconv.Itoa(code)).Inc()
}

// Self counts a request that the server sent to itself, with a client within the process.
func (m *Metrics) Self(info *apirequest.RequestInfo, method string) {
	if unknown(m.Served, info) || !info.IsResourceRequest {
		m.self.WithLabelValues(verb(info, method), "", "", "").Inc()
		return
	}
	m.self.WithLabelValues(verb(info, method), info.APIGroup, info.Resource, info.Subresource).Inc()
}

// Deprecated records the use of a deprecated API. removed is the release in which upstream removes it, such as
// "1.37", or "".
func (m *Metrics) Deprecated(info *apirequest.RequestInfo, removed string) {
	m.deprecated.WithLabelValues(info.APIGroup, info.APIVersion, info.Resource, info.Subresource, removed).Set(1)
}

// Answer describes a completed request and its response, for the metrics of requests.
type Answer struct {
	// Method is the HTTP method, Code the response status.
	Method string
	Code   int
	// Size is the size of the response body in bytes.
	Size int
	// Took is the duration from the receipt of the request to the end of the response.
	Took time.Duration
	// DryRun is set for dry-run requests, Long for long-running ones such as watches.
	DryRun, Long bool
}

// Request records a completed request: its number, duration and response size, by verb, resource and status. The
// names of resources that are not served are not recorded.
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
	} else if unknown(m.Served, info) {
		k = requestKey{verb: k.verb, scope: k.scope, dryRun: a.DryRun, code: a.Code}
	}
	m.totals.add(a)
	r := m.requests.of(k, a.Long, info.IsResourceRequest)
	r.total.Inc()
	r.duration.Observe(a.Took.Seconds())
	if r.sli != nil {
		r.sli.Observe(a.Took.Seconds())
	}
	if r.size != nil {
		r.size.Observe(float64(a.Size))
	}
}

// LongRunning counts a long-running request, such as a watch, as active until the caller calls the
// returned function.
func (m *Metrics) LongRunning(info *apirequest.RequestInfo, method string) func() {
	k := runningKey{verb(info, method), info.APIGroup, info.APIVersion, info.Resource, info.Subresource, scope(info)}
	if unknown(m.Served, info) {
		k = runningKey{verb: k.verb, scope: k.scope}
	}
	g := m.requests.longRunning(k)
	g.Inc()
	return g.Dec
}

// unknown reports whether a request is for a resource that is not served. served is Metrics.Served; if it is nil, all
// resources count as served.
func unknown(served func(*apirequest.RequestInfo) bool, info *apirequest.RequestInfo) bool {
	return info.IsResourceRequest && served != nil && !served(info)
}
