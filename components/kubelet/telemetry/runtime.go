package telemetry

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type runtimeMetrics struct {
	sandbox                            *prometheus.HistogramVec
	sandboxErrors                      *prometheus.CounterVec
	relist, interval, podRelist, delay prometheus.Histogram
	discarded, connected, refused      prometheus.Counter
	seen                               prometheus.Gauge
	cgroups                            *prometheus.HistogramVec
	losing                             *prometheus.GaugeVec
	last                               atomic.Int64 // time of the last relist in Unix nanoseconds; 0 for never
}

func (r *runtimeMetrics) fill(s *set) {
	r.sandbox = s.histograms(prefix+"run_podsandbox_duration_seconds", "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.", nil, "runtime_handler")
	r.sandboxErrors = s.counters(prefix+"run_podsandbox_errors_total", "[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.", "runtime_handler")
	r.relist = s.histogram(prefix+"pleg_relist_duration_seconds", "[ALPHA] Duration in seconds for relisting pods in PLEG.", nil)
	r.interval = s.histogram(prefix+"pleg_relist_interval_seconds", "[ALPHA] Interval in seconds between relisting in PLEG.", nil)
	r.podRelist = s.histogram(prefix+"pleg_pod_relist_duration_seconds", "[ALPHA] Duration in seconds for relisting a single pod in PLEG.", nil)
	r.seen = s.gauge(prefix+"pleg_last_seen_seconds", "[ALPHA] Timestamp in seconds when PLEG was last seen active.")
	r.discarded = s.counter(prefix+"pleg_discard_events", "[ALPHA] The number of discard events in PLEG.")
	r.refused = s.counter(prefix+"evented_pleg_connection_error_count", "[ALPHA] The number of errors encountered during the establishment of streaming connection with the CRI runtime.")
	r.connected = s.counter(prefix+"evented_pleg_connection_success_count", "[ALPHA] The number of times a streaming client was obtained to receive CRI Events.")
	r.delay = s.histogram(prefix+"evented_pleg_connection_latency_seconds", "[ALPHA] The latency of streaming connection with the CRI runtime, measured in seconds.", nil)
	r.losing = s.gauges(prefix+"cri_losing_support", "[ALPHA] The Kubernetes version in which support for the current version of the CRI runtime is dropped.", "version")
	r.cgroups = s.histograms(prefix+"cgroup_manager_duration_seconds", "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.", nil, "operation_type")
}

// supportedUntil is the first version of Kubernetes that requires every runtime to report its
// cgroup driver.
const supportedUntil = "1.38.0"

// LosingSupport records that the runtime lacks a feature that later kubelets require.
func (m *Metrics) LosingSupport() {
	if m == nil {
		return
	}
	m.runtime.losing.WithLabelValues(supportedUntil).Set(1)
}

// SandboxMade records the creation of a sandbox.
func (m *Metrics) SandboxMade(handler string, took time.Duration, err error) {
	if m == nil {
		return
	}
	m.runtime.sandbox.WithLabelValues(handler).Observe(took.Seconds())
	if err != nil {
		m.runtime.sandboxErrors.WithLabelValues(handler).Inc()
	}
}

// PodRelisted records that the state of one pod was read from the runtime. It also counts as a relist,
// because this kubelet reads pods on events and never all of them together.
func (m *Metrics) PodRelisted(took time.Duration) {
	if m == nil {
		return
	}
	m.runtime.podRelist.Observe(took.Seconds())
	m.runtime.relist.Observe(took.Seconds())
	now := time.Now()
	m.runtime.seen.Set(float64(now.Unix()))
	if last := m.runtime.last.Swap(now.UnixNano()); last != 0 {
		m.runtime.interval.Observe(time.Duration(now.UnixNano() - last).Seconds())
	}
}

// EventReceived records an event of the runtime. happened is its time; zero means unknown.
func (m *Metrics) EventReceived(happened time.Time) {
	if m == nil {
		return
	}
	now := time.Now()
	m.runtime.seen.Set(float64(now.Unix()))
	if delay := now.Sub(happened); !happened.IsZero() && delay >= 0 {
		m.runtime.delay.Observe(delay.Seconds())
	}
}

// EventStreamOpened records whether the runtime's event stream was opened.
func (m *Metrics) EventStreamOpened(err error) {
	switch {
	case m == nil:
	case err != nil:
		m.runtime.refused.Inc()
	default:
		m.runtime.connected.Inc()
	}
}

// Cgroup records that a cgroup was created ("create"), changed ("update") or removed ("destroy").
func (m *Metrics) Cgroup(operation string, took time.Duration) {
	if m != nil {
		m.runtime.cgroups.WithLabelValues(operation).Observe(took.Seconds())
	}
}
