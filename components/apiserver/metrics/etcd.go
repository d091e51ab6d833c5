package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// etcd has the metrics of requests to it.
type etcd struct {
	duration         *prometheus.HistogramVec
	requests, errors *prometheus.CounterVec
	known            sync.Map // of etcdMetrics by etcdKey
}

type etcdKey struct{ operation, group, resource string }

type etcdMetrics struct {
	duration prometheus.Observer
	requests prometheus.Counter
}

func newEtcd() *etcd {
	labels := []string{"operation", "group", "resource"}
	return &etcd{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "etcd_request_duration_seconds", Help: "[ALPHA] Etcd request latency in seconds for each operation and object type.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, labels),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "etcd_requests_total", Help: "[ALPHA] Etcd request counts for each operation and object type."}, labels),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "etcd_request_errors_total", Help: "[ALPHA] Etcd failed request counts for each operation and object type.",
		}, labels),
	}
}

func (e *etcd) collectors() []prometheus.Collector {
	return []prometheus.Collector{e.duration, e.requests, e.errors}
}

// Etcd counts a request to etcd: get, list, create, update or delete. It may be
// called by several goroutines.
func (m *Metrics) Etcd(operation, group, resource string, took time.Duration, err error) {
	k := etcdKey{operation, group, resource}
	known, ok := m.etcd.known.Load(k)
	if !ok {
		known, _ = m.etcd.known.LoadOrStore(k, etcdMetrics{m.etcd.duration.WithLabelValues(operation, group, resource), m.etcd.requests.WithLabelValues(operation, group, resource)})
	}
	one := known.(etcdMetrics)
	one.duration.Observe(took.Seconds())
	one.requests.Inc()
	if err != nil {
		m.etcd.errors.WithLabelValues(operation, group, resource).Inc()
	}
}

// unvalidated are counters of what cannot happen here: each object is validated
// in one way.
func unvalidated() []prometheus.Collector {
	counter := func(name, help string) prometheus.Collector {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "apiserver_validation_declarative_validation_" + name, Help: help})
	}
	return []prometheus.Collector{
		counter("mismatch_total", "[BETA] Number of times declarative validation results differed from handwritten validation results for core types."),
		counter("panic_total", "[BETA] Number of times declarative validation has panicked during validation."),
	}
}
