package horizontalpodautoscaling

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// specError is an error that the spec of the autoscaler causes. Metrics distinguish it from internal errors.
type specError struct{ error }

// Unwrap returns the wrapped error.
func (e specError) Unwrap() error { return e.error }

// controllerMetrics are the metrics of the autoscaling controller, with upstream's names and labels.
type controllerMetrics struct {
	reconciliations, computations       *prometheus.CounterVec
	reconciliationTime, computationTime *prometheus.HistogramVec
	autoscalers                         prometheus.GaugeFunc
	desired                             *prometheus.GaugeVec
}

// newControllerMetrics creates the metrics. count returns the number of autoscalers.
func newControllerMetrics(count func() float64) *controllerMetrics {
	const (
		actions = "The label 'action' should be either 'scale_down', 'scale_up', or 'none'. "
		both    = actions + "Also, the label 'error' should be either 'spec', 'internal', or 'none'. "
		first   = "Note that if both spec and internal errors happen during a reconciliation, the first one to occur is reported in `error` label."
		kind    = "The label 'metric_type' corresponds to HPA.spec.metrics[*].type"
		prefix  = "horizontal_pod_autoscaler_controller_"
	)
	buckets := prometheus.ExponentialBuckets(0.001, 2, 15)
	return &controllerMetrics{
		reconciliations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "reconciliations_total",
			Help: "[BETA] Number of reconciliations of HPA controller. " + both + first}, []string{"action", "error"}),
		reconciliationTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "reconciliation_duration_seconds", Buckets: buckets,
			Help: "[BETA] The time(seconds) that the HPA controller takes to reconcile once. " + both + first}, []string{"action", "error"}),
		computations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "metric_computation_total",
			Help: "[BETA] Number of metric computations. " + both + kind}, []string{"action", "error", "metric_type"}),
		computationTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "metric_computation_duration_seconds", Buckets: buckets,
			Help: "[BETA] The time(seconds) that the HPA controller takes to calculate one metric. " + actions + "The label 'error' should be either 'spec', 'internal', or 'none'. " + kind},
			[]string{"action", "error", "metric_type"}),
		desired: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "desired_replicas", Help: "[ALPHA] Current desired replica count for HPA objects."},
			[]string{"namespace", "hpa_name"}),
		autoscalers: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "num_horizontal_pod_autoscalers", Help: "[ALPHA] Current number of controlled HPA objects."}, count),
	}
}

func (m *controllerMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.reconciliations, m.reconciliationTime, m.computations, m.computationTime, m.autoscalers, m.desired}
}

// action returns the label "action" of metrics for a change of the target's size from current to wanted: "scale_up",
// "scale_down" or "none".
func action(current, wanted int32) string {
	switch {
	case wanted > current:
		return "scale_up"
	case wanted < current:
		return "scale_down"
	}
	return "none"
}

// blame returns the value of the label "error" for an error, which may be nil.
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

// round records one evaluation of an autoscaler in the metrics: its action, duration and error, which may be nil.
func (m *controllerMetrics) round(action string, took time.Duration, err error) {
	m.reconciliations.WithLabelValues(action, blame(err)).Inc()
	m.reconciliationTime.WithLabelValues(action, blame(err)).Observe(took.Seconds())
}

// metric records the evaluation of one metric of an autoscaler: its action, duration and error, which may be nil.
func (m *controllerMetrics) metric(kind autoscalingv2.MetricSourceType, action string, took time.Duration, err error) {
	m.computations.WithLabelValues(action, blame(err), string(kind)).Inc()
	m.computationTime.WithLabelValues(action, blame(err), string(kind)).Observe(took.Seconds())
}
