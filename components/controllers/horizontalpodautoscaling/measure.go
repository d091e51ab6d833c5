package horizontalpodautoscaling

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// specError is an error for which the autoscaler's specification is to blame.
type specError struct{ error }

// Unwrap returns what is wrong with the specification.
func (e specError) Unwrap() error { return e.error }

// measures are upstream's metrics of autoscalers.
type measures struct {
	rounds, asked        *prometheus.CounterVec
	roundTime, askedTime *prometheus.HistogramVec
	autoscalers          prometheus.GaugeFunc
	desired              *prometheus.GaugeVec
}

func newMeasures(count func() float64) *measures {
	const (
		actions = "The label 'action' should be either 'scale_down', 'scale_up', or 'none'. "
		both    = actions + "Also, the label 'error' should be either 'spec', 'internal', or 'none'. "
		first   = "Note that if both spec and internal errors happen during a reconciliation, the first one to occur is reported in `error` label."
		kind    = "The label 'metric_type' corresponds to HPA.spec.metrics[*].type"
		prefix  = "horizontal_pod_autoscaler_controller_"
	)
	buckets := prometheus.ExponentialBuckets(0.001, 2, 15)
	return &measures{
		rounds: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "reconciliations_total",
			Help: "[BETA] Number of reconciliations of HPA controller. " + both + first}, []string{"action", "error"}),
		roundTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "reconciliation_duration_seconds", Buckets: buckets,
			Help: "[BETA] The time(seconds) that the HPA controller takes to reconcile once. " + both + first}, []string{"action", "error"}),
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "metric_computation_total",
			Help: "[BETA] Number of metric computations. " + both + kind}, []string{"action", "error", "metric_type"}),
		askedTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "metric_computation_duration_seconds", Buckets: buckets,
			Help: "[BETA] The time(seconds) that the HPA controller takes to calculate one metric. " + actions + "The label 'error' should be either 'spec', 'internal', or 'none'. " + kind},
			[]string{"action", "error", "metric_type"}),
		desired: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "desired_replicas", Help: "[ALPHA] Current desired replica count for HPA objects."},
			[]string{"namespace", "hpa_name"}),
		autoscalers: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "num_horizontal_pod_autoscalers", Help: "[ALPHA] Current number of controlled HPA objects."}, count),
	}
}

func (m *measures) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.rounds, m.roundTime, m.asked, m.askedTime, m.autoscalers, m.desired}
}

// action is what a size means for a target that has another.
func action(current, wanted int32) string {
	switch {
	case wanted > current:
		return "scale_up"
	case wanted < current:
		return "scale_down"
	}
	return "none"
}

func blame(err error) string {
	var spec specError
	switch {
	case err == nil:
		return "none"
	case errors.As(err, &spec):
		return "spec"
	}
	return "internal"
}

func (m *measures) round(action string, took time.Duration, err error) {
	m.rounds.WithLabelValues(action, blame(err)).Inc()
	m.roundTime.WithLabelValues(action, blame(err)).Observe(took.Seconds())
}

func (m *measures) metric(kind autoscalingv2.MetricSourceType, action string, took time.Duration, err error) {
	m.asked.WithLabelValues(action, blame(err), string(kind)).Inc()
	m.askedTime.WithLabelValues(action, blame(err), string(kind)).Observe(took.Seconds())
}
