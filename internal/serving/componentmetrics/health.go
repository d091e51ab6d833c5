package componentmetrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// Health records the results of a component's health checks for its endpoint /metrics/slis. Its methods are safe for
// concurrent use.
//
// https://kubernetes.io/docs/reference/instrumentation/slis/
type Health struct {
	registry *prometheus.Registry
	state    *prometheus.GaugeVec
	total    *prometheus.CounterVec
}

// NewHealth creates a Health without recorded results.
func NewHealth() *Health {
	h := &Health{
		registry: prometheus.NewRegistry(),
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck",
			Help: "[STABLE] This metric records the result of a single healthcheck.",
		}, []string{"name", "type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total",
			Help: "[STABLE] This metric records the results of all healthcheck.",
		}, []string{"name", "status", "type"}),
	}
	h.registry.MustRegister(h.state, h.total)
	return h
}

// Observe records the result err of a health check, nil for success. name is the name of the check, and kind the
// endpoint that has run it: livez, readyz or healthz.
func (h *Health) Observe(name, kind string, err error) {
	status, value := "success", 1.0
	if err != nil {
		status, value = "error", 0
	}
	h.state.WithLabelValues(name, kind).Set(value)
	h.total.WithLabelValues(name, status, kind).Inc()
}

// Handler returns the handler of /metrics/slis, which serves the recorded results as metrics.
func (h *Health) Handler() http.Handler {
	return Handler(h.registry)
}
