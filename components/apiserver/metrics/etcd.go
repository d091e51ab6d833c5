package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// etcd contains the metrics of the store: requests to etcd, waits for the watch cache, the initial
// reads of the cache, and leases. known and waited cache metrics by their labels.
type etcd struct {
	duration         *prometheus.HistogramVec
	requests, errors *prometheus.CounterVec
	known            sync.Map // of etcdMetrics by etcdKey
	lists, waits     *prometheus.HistogramVec
	waited           sync.Map // of prometheus.Observer by etcdKey
	fills            *prometheus.HistogramVec
	leases           prometheus.Histogram
}

// etcdKey contains the labels of one metric. The operation is "" in etcd.waited.
type etcdKey struct{ operation, group, resource string }

// etcdMetrics contains the metrics of one kind of request to etcd.
type etcdMetrics struct {
	duration prometheus.Observer
	requests prometheus.Counter
	lists    prometheus.Observer // nil unless it is a list
}

// newEtcd creates the metrics of requests to etcd, of the watch cache and of leases. New registers them.
func newEtcd() *etcd {
	labels := []string{"operation", "group", "resource"}
	buckets := []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60}
	return &etcd{
		lists: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_storage_list_duration_seconds", Help: "[ALPHA] Latency of the storage layer GetList call in seconds, including object decode, split by whether etcd RangeStream was used.", Buckets: buckets,
		}, []string{"streamed", "group", "resource"}),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_watch_cache_read_wait_seconds", Help: "[ALPHA] Histogram of time spent waiting for a watch cache to become fresh.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3},
		}, []string{"group", "resource"}),
		fills: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_watch_cache_initialization_duration_seconds", Help: "[ALPHA] Histogram of watch cache initialization duration in seconds, broken by resource type.",
			Buckets: []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600},
		}, []string{"group", "resource"}),
		leases: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "etcd_lease_object_counts", Help: "[ALPHA] Number of objects attached to a single etcd lease.", Buckets: []float64{10, 50, 100, 500, 1000, 2500, 5000},
		}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "etcd_request_duration_seconds", Help: "[ALPHA] Etcd request latency in seconds for each operation and object type.", Buckets: buckets,
		}, labels),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "etcd_requests_total", Help: "[ALPHA] Etcd request counts for each operation and object type."}, labels),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "etcd_request_errors_total", Help: "[ALPHA] Etcd failed request counts for each operation and object type.",
		}, labels),
	}
}

// collectors returns all metrics of etcd and the watch cache, which New registers.
func (e *etcd) collectors() []prometheus.Collector {
	return []prometheus.Collector{e.duration, e.requests, e.errors, e.lists, e.waits, e.fills, e.leases}
}

// Etcd records a request of the store to etcd. operation is get, list, create, update or delete,
// group and resource are those of the objects, and err is the error of a failed request. It is safe
// for concurrent use.
func (m *Metrics) Etcd(operation, group, resource string, took time.Duration, err error) {
	k := etcdKey{operation, group, resource}
	known, ok := m.etcd.known.Load(k)
	if !ok {
		one := etcdMetrics{duration: m.etcd.duration.WithLabelValues(operation, group, resource), requests: m.etcd.requests.WithLabelValues(operation, group, resource)}
		if operation == "list" {
			one.lists = m.etcd.lists.WithLabelValues("false", group, resource)
		}
		known, _ = m.etcd.known.LoadOrStore(k, one)
	}
	one := known.(etcdMetrics)
	one.duration.Observe(took.Seconds())
	one.requests.Inc()
	if one.lists != nil {
		one.lists.Observe(took.Seconds())
	}
	if err != nil {
		m.etcd.errors.WithLabelValues(operation, group, resource).Inc()
	}
}

// Waited records a read that waited for the watch cache to catch up with etcd. It is safe for
// concurrent use.
func (m *Metrics) Waited(group, resource string, took time.Duration) {
	k := etcdKey{group: group, resource: resource}
	known, ok := m.etcd.waited.Load(k)
	if !ok {
		known, _ = m.etcd.waited.LoadOrStore(k, m.etcd.waits.WithLabelValues(group, resource))
	}
	known.(prometheus.Observer).Observe(took.Seconds())
}

// Filled records how long it took to read all objects of a resource from etcd into the watch cache.
// It is safe for concurrent use.
func (m *Metrics) Filled(group, resource string, took time.Duration) {
	m.etcd.fills.WithLabelValues(group, resource).Observe(took.Seconds())
}

// Leased records the number of objects that share one etcd lease because they expire at about the
// same time. It is safe for concurrent use.
func (m *Metrics) Leased(objects int) { m.etcd.leases.Observe(float64(objects)) }

// unvalidated returns upstream's counters of mismatches between its two ways of validation. They
// are always zero, because here each object is validated in only one way.
func unvalidated() []prometheus.Collector {
	counter := func(name, help string) prometheus.Collector {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "apiserver_validation_declarative_validation_" + name, Help: help})
	}
	return []prometheus.Collector{
		counter("mismatch_total", "[BETA] Number of times declarative validation results differed from handwritten validation results for core types."),
		counter("panic_total", "[BETA] Number of times declarative validation has panicked during validation."),
	}
}
