package measure

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// Health keeps what health checks said, for /metrics/slis. Its methods are safe
// for several goroutines.
//
// https://kubernetes.io/docs/reference/instrumentation/slis/
type Health struct {
	registry *prometheus.Registry
	state    *prometheus.GaugeVec
	total    *prometheus.CounterVec
}

// NewHealth makes a Health that knows of no check yet.
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

// Observe counts that a check said err. Kind is of which path it is: livez,
// readyz or healthz.
func (h *Health) Observe(name, kind string, err error) {
	status, value := "success", 1.0
	if err != nil {
		status, value = "error", 0
	}
	h.state.WithLabelValues(name, kind).Set(value)
	h.total.WithLabelValues(name, status, kind).Inc()
}

// Handler shows what they said.
func (h *Health) Handler() http.Handler {
	return Handler(h.registry)
}
