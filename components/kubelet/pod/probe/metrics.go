package probe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics has the Prometheus metrics of probes that the kubelet serves at /metrics/probes. It is a
// prometheus.Collector. A nil Metrics records nothing.
type Metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics returns Metrics in which no probe attempts are counted.
func NewMetrics() *Metrics {
	return &Metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total", Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_probe_duration_seconds", Help: "Duration in seconds for a probe response.",
		}, []string{"probe_type", "container", "pod", "namespace"}),
	}
}

// Describe sends the descriptions of the metrics to ch.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.total.Describe(ch)
	m.duration.Describe(ch)
}

// Collect sends the current counts and durations of probe attempts to ch.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.total.Collect(ch)
	m.duration.Collect(ch)
}

// record adds the result of one run of a probe. kind is Startup, Liveness or Readiness.
func (m *Metrics) record(kind string, t *Target, answer Answer, took time.Duration) {
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
	m.duration.WithLabelValues(kind, t.Container.Name, t.Pod.Name, t.Pod.Namespace).Observe(took.Seconds())
}

// remove removes the metrics of a container whose probes were stopped.
func (m *Metrics) remove(t *Target) {
	if m == nil {
		return
	}
	m.total.DeletePartialMatch(prometheus.Labels{"container": t.Container.Name, "pod_uid": string(t.Pod.UID)})
	m.duration.DeletePartialMatch(prometheus.Labels{"container": t.Container.Name, "pod": t.Pod.Name, "namespace": t.Pod.Namespace})
}
