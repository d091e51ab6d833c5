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
	last                               atomic.Int64 // when it was last asked, in nanoseconds since 1970; 0: never
}

func (r *runtimeMetrics) fill(s *set) {
	r.sandbox = s.histograms(own+"run_podsandbox_duration_seconds", "[ALPHA] Duration in seconds of the run_podsandbox operations, by the handler of the RuntimeClass.", nil, "runtime_handler")
	r.sandboxErrors = s.counters(own+"run_podsandbox_errors_total", "[ALPHA] Cumulative number of the run_podsandbox operation errors by the handler of the RuntimeClass.", "runtime_handler")
	r.relist = s.histogram(own+"pleg_relist_duration_seconds", "[ALPHA] Duration in seconds of asking the runtime how pods are.", nil)
	r.interval = s.histogram(own+"pleg_relist_interval_seconds", "[ALPHA] Interval in seconds between askings of the runtime how pods are.", nil)
	r.podRelist = s.histogram(own+"pleg_pod_relist_duration_seconds", "[ALPHA] Duration in seconds of asking the runtime how one pod is.", nil)
	r.seen = s.gauge(own+"pleg_last_seen_seconds", "[ALPHA] When, in seconds since 1970, the runtime was last heard of.")
	r.discarded = s.counter(own+"pleg_discard_events", "[ALPHA] The number of events of the runtime that nobody could take.")
	r.refused = s.counter(own+"evented_pleg_connection_error_count", "[ALPHA] The number of times that the runtime's events could not be followed.")
	r.connected = s.counter(own+"evented_pleg_connection_success_count", "[ALPHA] The number of times that following the runtime's events began.")
	r.delay = s.histogram(own+"evented_pleg_connection_latency_seconds", "[ALPHA] How long the runtime's events were on their way, in seconds.", nil)
	r.losing = s.gauges(own+"cri_losing_support", "[ALPHA] The version of Kubernetes from which on the runtime is too old, if it is not replaced.", "version")
	r.cgroups = s.histograms(own+"cgroup_manager_duration_seconds", "[ALPHA] Duration in seconds of making, changing and removing cgroups, by which of these.", nil, "operation_type")
}

// supportedUntil is the first version of Kubernetes that wants every runtime to say how
// cgroups are named.
const supportedUntil = "1.38.0"

// LosingSupport notes that the runtime lacks what later kubelets will not do without.
func (m *Metrics) LosingSupport() {
	if m == nil {
		return
	}
	m.runtime.losing.WithLabelValues(supportedUntil).Set(1)
}

// SandboxMade notes a call that makes a sandbox.
func (m *Metrics) SandboxMade(handler string, took time.Duration, err error) {
	if m == nil {
		return
	}
	m.runtime.sandbox.WithLabelValues(handler).Observe(took.Seconds())
	if err != nil {
		m.runtime.sandboxErrors.WithLabelValues(handler).Inc()
	}
}

// Asked notes that the runtime was asked how one pod is, and has just answered. As
// pods are looked at by events and not all at once, that is a look at the runtime,
// too.
func (m *Metrics) Asked(took time.Duration) {
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

// Heard notes that the runtime has told of what happened then; zero: it does not say.
func (m *Metrics) Heard(happened time.Time) {
	if m == nil {
		return
	}
	now := time.Now()
	m.runtime.seen.Set(float64(now.Unix()))
	if delay := now.Sub(happened); !happened.IsZero() && delay >= 0 {
		m.runtime.delay.Observe(delay.Seconds())
	}
}

// Followed counts that the runtime's events are followed from now on, or that they
// cannot be.
func (m *Metrics) Followed(err error) {
	switch {
	case m == nil:
	case err != nil:
		m.runtime.refused.Inc()
	default:
		m.runtime.connected.Inc()
	}
}

// Cgroup notes that a cgroup was made ("create"), changed ("update") or removed
// ("destroy").
func (m *Metrics) Cgroup(operation string, took time.Duration) {
	if m != nil {
		m.runtime.cgroups.WithLabelValues(operation).Observe(took.Seconds())
	}
}
