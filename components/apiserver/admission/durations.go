package admission

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/admission"
)

// durations are how long plugins and steps took. A nil one measures nothing.
// Looking a series up costs more than observing, so what was found is kept.
type durations struct {
	plugins, steps *prometheus.HistogramVec
}

// newDurations registers with r, which may be nil.
func newDurations(r prometheus.Registerer) (*durations, error) {
	if r == nil {
		return nil, nil
	}
	d := &durations{
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

// timer observes what one plugin, or a step, does.
type timer struct {
	of func(op admission.Operation, rejected string) prometheus.Observer
	// admitted are the observers of what was let pass, by the operation's place
	// in all; each is made when it is first needed.
	admitted [4]atomic.Pointer[prometheus.Observer]
}

// plugin returns the timer of a plugin's part ("admit" or "validate"); nil
// where nothing is measured.
func (d *durations) plugin(name, part string) *timer {
	if d == nil {
		return nil
	}
	return &timer{of: func(op admission.Operation, rejected string) prometheus.Observer {
		return d.plugins.WithLabelValues(name, part, string(op), rejected)
	}}
}

// step returns the timer of all plugins' part.
func (d *durations) step(part string) *timer {
	if d == nil {
		return nil
	}
	return &timer{of: func(op admission.Operation, rejected string) prometheus.Observer {
		return d.steps.WithLabelValues(part, string(op), rejected)
	}}
}

// took observes what began then and ended with err.
func (t *timer) took(op admission.Operation, began time.Time, err error) {
	if t == nil {
		return
	}
	i := slices.Index(all, op)
	if err != nil || i < 0 || i >= len(t.admitted) {
		t.of(op, strconv.FormatBool(err != nil)).Observe(time.Since(began).Seconds())
		return
	}
	to := t.admitted[i].Load()
	if to == nil {
		made := t.of(op, "false")
		to = &made
		t.admitted[i].Store(to)
	}
	(*to).Observe(time.Since(began).Seconds())
}
