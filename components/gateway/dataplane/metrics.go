package dataplane

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the Prometheus metrics of a Plane.
type metrics struct {
	requests    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	active      prometheus.Gauge
	connections prometheus.Counter
	applies     prometheus.Histogram
	// unrouted are the metrics of requests that no route matches.
	unrouted *routeMetrics

	mu     sync.Mutex // guards routes
	routes map[string]*routeMetrics
}

// newMetrics creates the metrics and registers them.
func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hyperkube_gateway_requests_total", Help: "Requests by route and class of the status code.",
		}, []string{"route", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hyperkube_gateway_request_duration_seconds", Help: "Time from the request header to the end of the response.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, []string{"route"}),
		active: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "hyperkube_gateway_active_requests", Help: "Requests that are being served.",
		}),
		connections: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hyperkube_gateway_connections_total", Help: "Accepted TCP connections.",
		}),
		applies: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "hyperkube_gateway_apply_duration_seconds", Help: "Time to put a new configuration into effect.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}),
		routes: map[string]*routeMetrics{},
	}
	m.unrouted = m.route("")
	r.MustRegister(m.requests, m.duration, m.active, m.connections, m.applies)
	return m
}

// applied records that a configuration was applied.
func (m *metrics) applied(took time.Duration) { m.applies.Observe(took.Seconds()) }

// route returns the metrics of the route with the name.
func (m *metrics) route(name string) *routeMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.routes[name]
	if out == nil {
		out = &routeMetrics{metrics: m, name: name}
		m.routes[name] = out
	}
	return out
}

// retain deletes the metrics of all routes except for those with the names, and those of requests without a route.
func (m *metrics) retain(names map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.routes {
		if name == "" || names[name] {
			continue
		}
		delete(m.routes, name)
		m.requests.DeletePartialMatch(prometheus.Labels{"route": name})
		m.duration.DeleteLabelValues(name)
	}
}

// routeMetrics are the metrics of one route. They exist only after its first request, because most routes of a large
// cluster get few.
type routeMetrics struct {
	metrics  *metrics
	name     string
	once     sync.Once
	duration prometheus.Observer
	codes    [6]prometheus.Counter // by the first digit of the status code
}

// observe records a request.
func (r *routeMetrics) observe(code int, took time.Duration) {
	r.once.Do(func() {
		r.duration = r.metrics.duration.WithLabelValues(r.name)
		for i := 1; i < len(r.codes); i++ {
			r.codes[i] = r.metrics.requests.WithLabelValues(r.name, strconv.Itoa(i)+"xx")
		}
	})
	if class := code / 100; class > 0 && class < len(r.codes) {
		r.codes[class].Inc()
	}
	r.duration.Observe(took.Seconds())
}
