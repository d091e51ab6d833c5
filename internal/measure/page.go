// Package measure has the metrics that components share: what is told of the
// Go runtime and the process, of the build and its features, of work queues, of
// requests to the API server and of leadership. Names, labels, buckets and help
// are upstream's.
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/
package measure

import (
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Page is what a component's /metrics tells: what own gather, and what is the same
// for all components of a process. Of a metric that several have, the first tells.
func Page(own ...prometheus.Gatherer) prometheus.Gatherer {
	return page{own: own, others: func(name string) bool {
		return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || aboutMetrics[name]
	}}
}

// Library gathers what a library of Kubernetes keeps in the registry of the
// process: the metrics whose names begin so.
func Library(prefix string) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := legacyregistry.DefaultGatherer.Gather()
		return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return !strings.HasPrefix(f.GetName(), prefix) }), err
	})
}

// WholePage is a Page that has all that Kubernetes' libraries keep in the
// registry of the process, too. It is for the component that uses them.
func WholePage(own ...prometheus.Gatherer) prometheus.Gatherer {
	return page{own: own, others: func(string) bool { return true }}
}

// aboutMetrics are the metrics of the registry itself.
var aboutMetrics = map[string]bool{"registered_metrics_total": true, "hidden_metrics_total": true, "disabled_metrics_total": true}

type page struct {
	own []prometheus.Gatherer
	// others tells which metrics of the process's registry are shown.
	others func(name string) bool
}

// Gather as prometheus.Gatherer.
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
	take(families, p.others)
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all, err
}

// Handler shows what g gathers. What cannot be gathered is left out.
func Handler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}
