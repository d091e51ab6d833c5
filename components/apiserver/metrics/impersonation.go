package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// impersonation contains the metrics of impersonated requests.
type impersonation struct{ attempts, checks outcomes }

// outcomes contains metrics by mode and decision.
type outcomes struct {
	n    *prometheus.CounterVec
	took *prometheus.HistogramVec
}

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

func (i *impersonation) collectors() []prometheus.Collector {
	return []prometheus.Collector{i.attempts.n, i.attempts.took, i.checks.n, i.checks.took}
}

func (o outcomes) count(mode string, allowed bool, took time.Duration) {
	decision := "denied"
	if allowed {
		decision = "allowed"
	}
	o.n.WithLabelValues(mode, decision).Inc()
	o.took.WithLabelValues(mode, decision).Observe(took.Seconds())
}

// Impersonated counts an impersonated request with the mode that allowed it, or no mode if it was
// not allowed.
func (m *Metrics) Impersonated(mode string, allowed bool, took time.Duration) {
	m.impersonation.attempts.count(mode, allowed, took)
}

// ImpersonationChecked counts one authorization check for an impersonation mode.
func (m *Metrics) ImpersonationChecked(mode string, allowed bool, took time.Duration) {
	m.impersonation.checks.count(mode, allowed, took)
}
