// Package componentmetrics contains the metrics that components share: metrics of the Go runtime and the
// process, the build and its feature gates, work queues, requests to the API server, and leader
// election. Names, labels, buckets and help texts are those of upstream.
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/
package componentmetrics

import (
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Page returns the gatherer of a component's /metrics page: the metrics of own, and those of the global Prometheus
// registry that describe the Go runtime, the process and the registry itself. If several gatherers return the same
// metric, the first one is used.
func Page(own ...prometheus.Gatherer) prometheus.Gatherer {
	return page{own: own, include: func(name string) bool {
		return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || registryMetrics[name]
	}}
}

// Library gathers the metrics that a Kubernetes library registers in the global Prometheus registry of the process
// and whose names have the prefix. If some metrics cannot be gathered, it returns an error and the others.
func Library(prefix string) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := legacyregistry.DefaultGatherer.Gather()
		return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return !strings.HasPrefix(f.GetName(), prefix) }), err
	})
}

// PageWithLibraries is like Page, but includes all metrics of the global Prometheus registry of the
// process. It is for the component that uses the Kubernetes libraries, the API server.
func PageWithLibraries(own ...prometheus.Gatherer) prometheus.Gatherer {
	return page{own: own, include: func(string) bool { return true }}
}

// registryMetrics are the names of the metrics that the global Prometheus registry exports about
// itself. Every component's page includes them.
var registryMetrics = map[string]bool{"registered_metrics_total": true, "hidden_metrics_total": true, "disabled_metrics_total": true}

// page is the gatherer that Page and PageWithLibraries return.
type page struct {
	own []prometheus.Gatherer
	// include selects the metrics of the global registry that are included.
	include func(name string) bool
}

// Gather implements prometheus.Gatherer. It returns the metrics sorted by name. If a gatherer of own fails, it
// returns the error and the metrics of the gatherers before it. If the global registry fails, it returns the error
// and all metrics that could be gathered.
func (p page) Gather() ([]*dto.MetricFamily, error) {
	var all []*dto.MetricFamily
	known := map[string]bool{}
	take := func(families []*dto.MetricFamily, want func(string) bool) {
		for _, f := range families {
			if name := f.GetName(); !known[name] && want(name) {
				known[name] = true
				all = append(all, f)
			}
		}
	}
	for _, g := range p.own {
		families, err := g.Gather()
		if err != nil {
			return all, err
		}
		take(families, func(string) bool { return true })
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	take(families, p.include)
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all, err
}

// Handler returns an HTTP handler that serves the metrics of g. Metrics that cannot be gathered are
// omitted.
func Handler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}
