package admission

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/admission"
)

// durationMetrics contains the histograms of the durations of each admission plugin, and of each of the two phases
// (admit and validate) as a whole. A nil *durationMetrics measures nothing.
type durationMetrics struct {
	plugins, steps *prometheus.HistogramVec
}

// newDurationMetrics creates the histograms and registers them with r. It returns nil if r is nil, and an error if
// one of them is registered already.
func newDurationMetrics(r prometheus.Registerer) (*durationMetrics, error) {
	if r == nil {
		return nil, nil
	}
	d := &durationMetrics{
		plugins: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_admission_controller_admission_duration_seconds",
			Help:    "[STABLE] Admission controller latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1.0, 2.5},
		}, []string{"name", "type", "operation", "rejected"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_admission_step_admission_duration_seconds",
			Help:    "[STABLE] Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step type (validate or admit).",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1.0, 2.5},
		}, []string{"type", "operation", "rejected"}),
	}
	for _, c := range []prometheus.Collector{d.plugins, d.steps} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// timer measures one plugin or one phase. It caches the Prometheus observers, because looking up a
// series costs more than an observation. A nil timer measures nothing.
type timer struct {
	observer func(op admission.Operation, rejected string) prometheus.Observer
	// admitted are the observers for calls that admitted the request, by the operation's index in all. Each is
	// created at first use.
	admitted [4]atomic.Pointer[prometheus.Observer]
}

// plugin returns the timer for a phase ("admit" or "validate") of the plugin with the name, or nil
// if nothing is measured.
func (d *durationMetrics) plugin(name, part string) *timer {
	if d == nil {
		return nil
	}
	return &timer{observer: func(op admission.Operation, rejected string) prometheus.Observer {
		return d.plugins.WithLabelValues(name, part, string(op), rejected)
	}}
}

// step returns the timer for a phase ("admit" or "validate") of all plugins together, or nil if
// nothing is measured.
func (d *durationMetrics) step(part string) *timer {
	if d == nil {
		return nil
	}
	return &timer{observer: func(op admission.Operation, rejected string) prometheus.Observer {
		return d.steps.WithLabelValues(part, string(op), rejected)
	}}
}

// observe records the duration of a call that started at began and returned err. An error counts as a rejection. It
// does nothing for a nil timer.
func (t *timer) observe(op admission.Operation, began time.Time, err error) {
	if t == nil {
		return
	}
	i := slices.Index(all, op)
	if err != nil || i < 0 || i >= len(t.admitted) {
		t.observer(op, strconv.FormatBool(err != nil)).Observe(time.Since(began).Seconds())
		return
	}
	to := t.admitted[i].Load()
	if to == nil {
		made := t.observer(op, "false")
		to = &made
		t.admitted[i].Store(to)
	}
	(*to).Observe(time.Since(began).Seconds())
}
