package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Stage is a step of handling a request whose duration is measured.
type Stage int

// The stages in which a request is handled, in the order in which the request passes through them.
const (
	Authentication Stage = iota
	Audit
	Impersonation
	Fairness
	Authorization
)

// stageNames are upstream's names of the stages.
var stageNames = [...]string{
	Authentication: "authentication", Audit: "audit", Impersonation: "constrainedimpersonation",
	Fairness: "priorityandfairness", Authorization: "authorization",
}

// stages contains the metrics of the duration of each stage.
type stages struct {
	took *prometheus.HistogramVec
	each [len(stageNames)]prometheus.Observer
}

// newStages creates the metrics of the duration of each stage. New registers them.
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

// ObserveStage records how long a request was in a stage, without the time in later stages.
func (m *Metrics) ObserveStage(s Stage, took time.Duration) { m.stages.each[s].Observe(took.Seconds()) }
