package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Devices has the metrics of registrations of device plugins and of allocations of their devices. Its methods
// are safe for concurrent use. On a nil receiver they do nothing.
type Devices struct {
	plugins   *prometheus.CounterVec
	allocated *prometheus.HistogramVec
}

func (m *Devices) fill(s *set) {
	m.plugins = s.counters(prefix+"device_plugin_registration_total", "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.", "resource_name")
	m.allocated = s.histograms(prefix+"device_plugin_alloc_duration_seconds", "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.", nil, "resource_name")
}

// PluginRegistered counts a registration of a device plugin for a resource, even if it is rejected.
func (m *Devices) PluginRegistered(resource string) {
	if m != nil {
		m.plugins.WithLabelValues(resource).Inc()
	}
}

// DevicesAllocated records how long a device plugin took to allocate devices of a resource.
func (m *Devices) DevicesAllocated(resource string, took time.Duration) {
	if m != nil {
		m.allocated.WithLabelValues(resource).Observe(took.Seconds())
	}
}
