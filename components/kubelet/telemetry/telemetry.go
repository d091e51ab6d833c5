package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of a kubelet. Its methods are safe for concurrent use. On a nil receiver
// they do nothing.
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

// New creates Metrics.
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
