// Package metrics counts requests under upstream's stable names, in a registry
// of its own.
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/
package metrics

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-base/metrics/legacyregistry"

	"hyperkube/internal/version"
)

// Metrics of one API server. Its methods are safe for several goroutines.
type Metrics struct {
	// Served tells whether there is such a resource; what anybody asks for
	// that is not served is counted without its names, which are any number
	// and need not be text. Nil: all is. It is set before requests come.
	Served func(*apirequest.RequestInfo) bool

	registry           *prometheus.Registry
	total              *prometheus.CounterVec
	duration           *prometheus.HistogramVec
	sli                *prometheus.HistogramVec
	inflight           *prometheus.GaugeVec
	watchers           *prometheus.GaugeVec
	readOnly, mutating prometheus.Gauge

	// Looking metrics up by their labels costs more than counting, so what
	// was found is kept.
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
	total         prometheus.Counter
	duration, sli prometheus.Observer
}

// maxKept bounds what is kept; clients choose some of the labels.
const maxKept = 8192

// New makes Metrics, with those of the Go runtime and the process.
func New() *Metrics {
	labels := []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total",
			Help: "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
		}, []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_request_duration_seconds",
			Help: "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3,
				4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"}),
		sli: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_request_sli_duration_seconds",
			Help: "Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component.",
			Buckets: []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3,
				4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, labels),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests",
			Help: "Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
		}, []string{"request_kind"}),
		watchers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests",
			Help: "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.",
		}, labels),
		requests: map[requestKey]*requestMetrics{},
		running:  map[runningKey]prometheus.Gauge{},
	}
	m.readOnly, m.mutating = m.inflight.WithLabelValues("readOnly"), m.inflight.WithLabelValues("mutating")
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
	}, []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"})
	v := version.Get()
	build.WithLabelValues(v.Major, v.Minor, v.GitVersion, v.GitCommit, v.GitTreeState, v.BuildDate, v.GoVersion, v.Compiler, v.Platform).Set(1)
	m.registry.MustRegister(m.total, m.duration, m.sli, m.inflight, m.watchers, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Registry is where further metrics of the server are registered.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Handler shows all metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(both{m.registry}, promhttp.HandlerOpts{})
}

// both adds to our metrics those that Kubernetes' libraries keep in the
// registry of the process: of fairness, audit, admission, authentication and
// the like. Where both have a metric, ours is shown.
type both struct{ own prometheus.Gatherer }

// Gather as prometheus.Gatherer.
func (b both) Gather() ([]*dto.MetricFamily, error) {
	all, err := b.own.Gather()
	if err != nil {
		return all, err
	}
	known := make(map[string]bool, len(all))
	for _, f := range all {
		known[f.GetName()] = true
	}
	others, err := legacyregistry.DefaultGatherer.Gather()
	for _, f := range others {
		if name := f.GetName(); !known[name] && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all, err
}

// Scope is the label of what a request is about: an object, a namespace or all.
func Scope(info *apirequest.RequestInfo) string {
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

// Verb is the label of a request's verb, in upstream's capitals.
func Verb(info *apirequest.RequestInfo, method string) string {
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

// InFlight counts a short request from now until the returned function is
// called.
func (m *Metrics) InFlight(readOnly bool) func() {
	g := m.mutating
	if readOnly {
		g = m.readOnly
	}
	g.Inc()
	return g.Dec
}

// Request counts one that has been answered.
func (m *Metrics) Request(info *apirequest.RequestInfo, method string, dryRun bool, code int, took time.Duration) {
	k := requestKey{
		verb: Verb(info, method), group: info.APIGroup, version: info.APIVersion, resource: info.Resource,
		subresource: info.Subresource, scope: Scope(info), dryRun: dryRun, code: code,
	}
	if !info.IsResourceRequest {
		k.subresource = ""
		if code == http.StatusNotFound {
			k.verb = "other"
		}
	} else if m.unknown(info) {
		k = requestKey{verb: k.verb, scope: k.scope, code: code}
	}
	m.mu.RLock()
	r := m.requests[k]
	m.mu.RUnlock()
	if r == nil {
		dry := ""
		if dryRun {
			dry = "All"
		}
		r = &requestMetrics{
			total:    m.total.WithLabelValues(k.verb, dry, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver", strconv.Itoa(code)),
			duration: m.duration.WithLabelValues(k.verb, dry, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver"),
			sli:      m.sli.WithLabelValues(k.verb, k.group, k.version, k.resource, k.subresource, k.scope, "apiserver"),
		}
		m.mu.Lock()
		if len(m.requests) < maxKept {
			m.requests[k] = r
		}
		m.mu.Unlock()
	}
	r.total.Inc()
	r.duration.Observe(took.Seconds())
	r.sli.Observe(took.Seconds())
}

// LongRunning counts a request that runs for long from now until the returned
// function is called.
func (m *Metrics) LongRunning(info *apirequest.RequestInfo, method string) func() {
	k := runningKey{Verb(info, method), info.APIGroup, info.APIVersion, info.Resource, info.Subresource, Scope(info)}
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
