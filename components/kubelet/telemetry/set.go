// Package telemetry provides the kubelet's metrics under upstream's names, labels and buckets, so
// that existing dashboards and alerts work. Metrics that are computed on each scrape, such as the
// number of pods, are provided by other packages.
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/
package telemetry

import "github.com/prometheus/client_golang/prometheus"

// set is a list of collectors that are registered together as one collector. Its methods create metrics and
// add them to the list.
type set []prometheus.Collector

// Describe sends the descriptions of all metrics to ch.
func (s set) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s {
		c.Describe(ch)
	}
}

// Collect sends the current values of all metrics of the set to ch.
func (s set) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s {
		c.Collect(ch)
	}
}

// prefix is the prefix of the names of most metrics of the kubelet.
const prefix = "kubelet_"

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

// histogram adds a histogram. Nil buckets mean Prometheus' default buckets.
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
