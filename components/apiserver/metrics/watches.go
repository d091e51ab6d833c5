package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// watches contains the metrics of watches: number and sizes of events, initial objects, and the
// duration of streamed lists.
type watches struct {
	events      *prometheus.CounterVec
	initial     *prometheus.CounterVec
	sizes, list *prometheus.HistogramVec
}

// newWatches creates the metrics of watches. New registers them.
func newWatches() *watches {
	labels := []string{"group", "version", "resource"}
	return &watches{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_watch_events_total", Help: "[BETA] Number of events sent in watch clients"}, labels),
		initial: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_init_events_total", Help: "[ALPHA] Counter of init events processed in watch cache broken by resource type.",
		}, []string{"group", "resource"}),
		sizes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_watch_events_sizes", Help: "[BETA] Watch event size distribution in bytes", Buckets: prometheus.ExponentialBuckets(1024, 2, 8),
		}, labels),
		list: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_watch_list_duration_seconds", Help: "[BETA] Response latency distribution in seconds for watch list requests broken by group, version, resource and scope.",
			Buckets: []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300},
		}, []string{"group", "version", "resource", "scope"}),
	}
}

// collectors returns all metrics of watches, which New registers.
func (w *watches) collectors() []prometheus.Collector {
	return []prometheus.Collector{w.events, w.initial, w.sizes, w.list}
}

// Watch counts the events of the watches of one resource. The zero value does nothing.
type Watch struct {
	events prometheus.Counter
	sizes  prometheus.Observer
}

// Watch returns the metrics with which a watch of a served resource counts its events. If m is nil, the result counts
// nothing.
func (m *Metrics) Watch(info *apirequest.RequestInfo) Watch {
	if m == nil {
		return Watch{}
	}
	return Watch{
		m.watches.events.WithLabelValues(info.APIGroup, info.APIVersion, info.Resource),
		m.watches.sizes.WithLabelValues(info.APIGroup, info.APIVersion, info.Resource),
	}
}

// Event counts an event that was sent to the client, with its size in bytes.
func (w Watch) Event(size int) {
	if w.events == nil {
		return
	}
	w.events.Inc()
	w.sizes.Observe(float64(size))
}

// Initial counts the existing objects that a watch sends when it starts. It does nothing if m is nil.
func (m *Metrics) Initial(info *apirequest.RequestInfo, objects int) {
	if m != nil && objects > 0 {
		m.watches.initial.WithLabelValues(info.APIGroup, info.Resource).Add(float64(objects))
	}
}

// Listed records how long it took to send the initial objects of a watch that streams a list
// (sendInitialEvents). It does nothing if m is nil.
func (m *Metrics) Listed(info *apirequest.RequestInfo, took time.Duration) {
	if m != nil {
		m.watches.list.WithLabelValues(info.APIGroup, info.APIVersion, info.Resource, scope(info)).Observe(took.Seconds())
	}
}
