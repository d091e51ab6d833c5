package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the kubelet's. Its methods are safe for several goroutines; those of
// nil do nothing.
type Metrics struct {
	set
	pods      podMetrics
	images    imageMetrics
	runtime   runtimeMetrics
	volumes   volumeMetrics
	resources resourceMetrics
	requests  requestMetrics
	node      nodeMetrics
}

var _ prometheus.Collector = (*Metrics)(nil)

// New makes Metrics of a kubelet that has done nothing yet.
func New() *Metrics {
	m := &Metrics{}
	m.pods.fill(&m.set)
	m.images.fill(&m.set)
	m.runtime.fill(&m.set)
	m.volumes.fill(&m.set)
	m.resources.fill(&m.set)
	m.requests.fill(&m.set)
	m.node.fill(&m.set)
	return m
}
