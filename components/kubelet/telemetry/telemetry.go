package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of a kubelet: its methods record what the pod workers do, and its fields are the metrics
// of the other parts. Its methods are safe for concurrent use. On a nil receiver they do nothing.
type Metrics struct {
	set
	Images     Images
	Volumes    Volumes
	Hooks      Hooks
	Devices    Devices
	Claims     Claims
	Allocation Allocation
	Sockets    Sockets
	Requests   Requests
	Node       Node

	pods         podMetrics
	admission    admissionMetrics
	resizes      resizeMetrics
	runtime      runtimeMetrics
	imageVolumes imageVolumeMetrics
	podVolumes   podVolumeMetrics
}

var _ prometheus.Collector = (*Metrics)(nil)

// New creates Metrics.
func New() *Metrics {
	m := &Metrics{}
	for _, topic := range []interface{ fill(*set) }{
		&m.Images, &m.Volumes, &m.Hooks, &m.Devices, &m.Claims, &m.Allocation, &m.Sockets, &m.Requests, &m.Node,
		&m.pods, &m.admission, &m.resizes, &m.runtime, &m.imageVolumes, &m.podVolumes,
	} {
		topic.fill(&m.set)
	}
	return m
}
