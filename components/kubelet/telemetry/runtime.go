package telemetry

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// runtimeMetrics are the metrics of the container runtime: sandboxes, events and reading the state of pods.
type runtimeMetrics struct {
	sandbox                            *prometheus.HistogramVec
	sandboxErrors                      *prometheus.CounterVec
	relist, interval, podRelist, delay prometheus.Histogram
	discarded, connected, refused      prometheus.Counter
	seen                               prometheus.Gauge
	kept, keptSoftly                   prometheus.Gauge // protected memory
	last                               atomic.Int64     // time of the last relist in Unix nanoseconds; 0 for never
}

func (m *runtimeMetrics) fill(s *set) {
	m.sandbox = s.histograms(prefix+"run_podsandbox_duration_seconds", "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.", nil, "runtime_handler")
	m.sandboxErrors = s.counters(prefix+"run_podsandbox_errors_total", "[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.", "runtime_handler")
	m.relist = s.histogram(prefix+"pleg_relist_duration_seconds", "[ALPHA] Duration in seconds for relisting pods in PLEG.", nil)
	m.interval = s.histogram(prefix+"pleg_relist_interval_seconds", "[ALPHA] Interval in seconds between relisting in PLEG.", nil)
	m.podRelist = s.histogram(prefix+"pleg_pod_relist_duration_seconds", "[ALPHA] Duration in seconds for relisting a single pod in PLEG.", nil)
	m.seen = s.gauge(prefix+"pleg_last_seen_seconds", "[ALPHA] Timestamp in seconds when PLEG was last seen active.")
	m.discarded = s.counter(prefix+"pleg_discard_events", "[ALPHA] The number of discard events in PLEG.")
	m.refused = s.counter(prefix+"evented_pleg_connection_error_count", "[ALPHA] The number of errors encountered during the establishment of streaming connection with the CRI runtime.")
	m.connected = s.counter(prefix+"evented_pleg_connection_success_count", "[ALPHA] The number of times a streaming client was obtained to receive CRI Events.")
	m.delay = s.histogram(prefix+"evented_pleg_connection_latency_seconds", "[ALPHA] The latency of streaming connection with the CRI runtime, measured in seconds.", nil)
	m.kept = s.gauge(prefix+"memory_qos_node_memory_min_bytes", "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and never reclaimed by the kernel.")
	m.keptSoftly = s.gauge(prefix+"memory_qos_node_memory_low_bytes", "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may be reclaimed under extreme pressure.")
}

// SandboxMade records the duration and the result of the creation of a sandbox with a runtime handler; "" is
// the default handler.
func (m *Metrics) SandboxMade(handler string, took time.Duration, err error) {
	if m == nil {
		return
	}
	m.runtime.sandbox.WithLabelValues(handler).Observe(took.Seconds())
	if err != nil {
		m.runtime.sandboxErrors.WithLabelValues(handler).Inc()
	}
}

// PodRelisted records how long it took to read the state of one pod from the runtime. It also counts as a
// relist of all pods, because this kubelet reads pods on events and never all of them together.
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

// EventReceived records an event of the runtime and its delay. happened is the time of the event; zero means
// unknown. A time in the future is not recorded as a delay.
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

// EventStreamOpened counts an attempt to open the runtime's event stream. err is its result.
func (m *Metrics) EventStreamOpened(err error) {
	switch {
	case m == nil:
	case err != nil:
		m.runtime.refused.Inc()
	default:
		m.runtime.connected.Inc()
	}
}

// MemoryProtected records how much memory of Guaranteed and of Burstable pods is protected from reclaim, in
// bytes.
func (m *Metrics) MemoryProtected(guaranteed, burstable int64) {
	if m != nil {
		m.runtime.kept.Set(float64(guaranteed))
		m.runtime.keptSoftly.Set(float64(burstable))
	}
}
