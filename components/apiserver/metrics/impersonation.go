package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// impersonation contains the metrics of requests with impersonation headers, and of the
// authorization checks that they require.
type impersonation struct{ attempts, checks outcomes }

// outcomes contains the number and the duration of attempts or checks, by impersonation mode and
// decision (allowed or denied).
type outcomes struct {
	n    *prometheus.CounterVec
	took *prometheus.HistogramVec
}

// newImpersonation creates the metrics of impersonation. New registers them.
func newImpersonation() *impersonation {
	of := func(name, what string) outcomes {
		labels := []string{"mode", "decision"}
		return outcomes{
			n: prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "apiserver_impersonation_" + name + "_total", Help: "[ALPHA] Total number of " + what + " split by mode and decision.",
			}, labels),
			took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
				Name: "apiserver_impersonation_" + name + "_duration_seconds", Help: "[ALPHA] Latency of " + what + " in seconds split by mode and decision.",
				Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
			}, labels),
		}
	}
	return &impersonation{
		attempts: of("attempts", "impersonation attempts"),
		checks:   of("authorization_attempts", "authorization checks made by the impersonation handler"),
	}
}

// collectors returns all metrics of impersonation, which New registers.
func (i *impersonation) collectors() []prometheus.Collector {
	return []prometheus.Collector{i.attempts.n, i.attempts.took, i.checks.n, i.checks.took}
}

// count records one attempt or check, which took the given time.
func (o outcomes) count(mode string, allowed bool, took time.Duration) {
	decision := "denied"
	if allowed {
		decision = "allowed"
	}
	o.n.WithLabelValues(mode, decision).Inc()
	o.took.WithLabelValues(mode, decision).Observe(took.Seconds())
}

// Impersonated counts a request with impersonation headers. mode is the impersonation mode that
// allowed it, or "" if none did. took is the time of all authorization checks for it.
func (m *Metrics) Impersonated(mode string, allowed bool, took time.Duration) {
	m.impersonation.attempts.count(mode, allowed, took)
}

// ImpersonationChecked counts one authorization check for an impersonation mode. Impersonated
// counts the request itself.
func (m *Metrics) ImpersonationChecked(mode string, allowed bool, took time.Duration) {
	m.impersonation.checks.count(mode, allowed, took)
}
