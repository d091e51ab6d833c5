package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Metrics are all metrics of a kubelet that are updated by events. Its methods record what the pod workers
// do, and its fields are the metrics of the other parts. Its methods are safe for concurrent use. On a nil
// receiver they do nothing.
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

// New returns Metrics without values. The caller must register it with Prometheus.
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
