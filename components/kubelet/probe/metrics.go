package probe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are those of /metrics/probes.
type Metrics struct {
	total *prometheus.CounterVec
	took  *prometheus.HistogramVec
}

// NewMetrics makes Metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total", Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_probe_duration_seconds", Help: "Duration in seconds for a probe response.",
		}, []string{"probe_type", "container", "pod", "namespace"}),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.total.Describe(ch)
	m.took.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.total.Collect(ch)
	m.took.Collect(ch)
}

// note counts an answer to a probe that is named as in events.
func (m *Metrics) note(kind string, t *Target, answer Answer, took time.Duration) {
	if m == nil {
		return
	}
	result := "unknown"
	switch answer {
	case Success:
		result = "successful"
	case Failure:
		result = "failed"
	}
	m.total.WithLabelValues(kind, result, t.Container.Name, t.Pod.Name, t.Pod.Namespace, string(t.Pod.UID)).Inc()
	m.took.WithLabelValues(kind, t.Container.Name, t.Pod.Name, t.Pod.Namespace).Observe(took.Seconds())
}

// forget drops what was counted of a container.
func (m *Metrics) forget(t *Target) {
	if m == nil {
		return
	}
	m.total.DeletePartialMatch(prometheus.Labels{"container": t.Container.Name, "pod_uid": string(t.Pod.UID)})
	m.took.DeletePartialMatch(prometheus.Labels{"container": t.Container.Name, "pod": t.Pod.Name, "namespace": t.Pod.Namespace})
}
