// Package telemetry counts and times what the kubelet does, under the names,
// labels and buckets that upstream's kubelet has, so that dashboards and alerts
// that were made for it work here. What is merely counted when somebody asks (how
// many pods there are, say) is told by who knows it.
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/
package telemetry

import "github.com/prometheus/client_golang/prometheus"

// set is a number of collectors that are registered as one.
type set []prometheus.Collector

// Describe implements prometheus.Collector.
func (s set) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (s set) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s {
		c.Collect(ch)
	}
}

// own is how the names of the kubelet's own metrics begin.
const own = "kubelet_"

func (s *set) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	*s = append(*s, c)
	return c
}

func (s *set) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	*s = append(*s, c)
	return c
}

func (s *set) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	*s = append(*s, g)
	return g
}

func (s *set) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	*s = append(*s, g)
	return g
}

// histogram has the usual buckets of Prometheus where buckets is nil.
func (s *set) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	*s = append(*s, h)
	return h
}

func (s *set) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	*s = append(*s, h)
	return h
}
