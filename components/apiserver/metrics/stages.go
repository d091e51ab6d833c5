package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Stage is one of those that each request goes through before it is answered.
type Stage int

// The stages, in their order.
const (
	Authentication Stage = iota
	Audit
	Impersonation
	Fairness
	Authorization
)

// stageNames are what upstream calls them.
var stageNames = [...]string{
	Authentication: "authentication", Audit: "audit", Impersonation: "constrainedimpersonation",
	Fairness: "priorityandfairness", Authorization: "authorization",
}

// stages has how long each of them takes.
type stages struct {
	took *prometheus.HistogramVec
	each [len(stageNames)]prometheus.Observer
}

func newStages() *stages {
	s := &stages{took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "apiserver_request_filter_duration_seconds", Help: "[ALPHA] Request filter latency distribution in seconds, for each filter type",
		Buckets: []float64{0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 5, 10, 15, 30},
	}, []string{"filter"})}
	for i, name := range stageNames {
		s.each[i] = s.took.WithLabelValues(name)
	}
	return s
}

// Passed takes note of how long a request was in a stage.
func (m *Metrics) Passed(s Stage, took time.Duration) { m.stages.each[s].Observe(took.Seconds()) }
