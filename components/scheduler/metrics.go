package scheduler

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are upstream's of the same names.
// https://kubernetes.io/docs/reference/instrumentation/metrics/
type metrics struct {
	attempts    *prometheus.CounterVec
	pending     [places]prometheus.Gauge
	duration    *prometheus.HistogramVec
	sli         *prometheus.HistogramVec
	podAttempts prometheus.Histogram
	preemptions prometheus.Counter
	victims     prometheus.Histogram
}

// newMetrics makes the metrics, and registers them with r if that is not nil.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_schedule_attempts_total",
			Help: "Attempts to find a node for a pod, by their result: scheduled, unschedulable or error.",
		}, []string{"profile", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "scheduler_scheduling_attempt_duration_seconds",
			Help:    "How long attempts took in seconds, binding included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"profile", "result"}),
		sli: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "scheduler_pod_scheduling_sli_duration_seconds",
			Help:    "How long pods took from entering the queue to being bound, in seconds, over all attempts.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 20),
		}, []string{"attempts"}),
		podAttempts: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "scheduler_pod_scheduling_attempts",
			Help:    "How many attempts pods took that were scheduled.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 5),
		}),
		preemptions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "scheduler_preemption_attempts_total",
			Help: "Attempts to make room for a pod by evicting others.",
		}),
		victims: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "scheduler_preemption_victims",
			Help:    "How many pods were evicted for one.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 7),
		}),
	}
	pending := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "scheduler_pending_pods",
		Help: "Pods without a node, by where they wait: active to be tried next, backoff for a time, unschedulable for something to happen, gated for their gates to go.",
	}, []string{"queue"})
	for at, name := range map[place]string{active: "active", backoff: "backoff", waiting: "unschedulable", gated: "gated"} {
		m.pending[at] = pending.WithLabelValues(name)
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.attempts, m.duration, m.sli, m.podAttempts, m.preemptions, m.victims, pending} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// waiting tells how many pods are where in the queue.
func (m *metrics) waiting(q *queue) {
	for at, gauge := range m.pending {
		if gauge != nil {
			gauge.Set(float64(q.counts[at]))
		}
	}
}

// attempt tells how one attempt went: scheduled, unschedulable or error.
func (m *metrics) attempt(profile, result string, took time.Duration) {
	m.attempts.WithLabelValues(profile, result).Inc()
	m.duration.WithLabelValues(profile, result).Observe(took.Seconds())
}

// placed tells how long a pod was waited for in all.
func (m *metrics) placed(attempts int, took time.Duration) {
	label := strconv.Itoa(attempts)
	if attempts >= 16 {
		label = "16+"
	}
	m.podAttempts.Observe(float64(attempts))
	m.sli.WithLabelValues(label).Observe(took.Seconds())
}
