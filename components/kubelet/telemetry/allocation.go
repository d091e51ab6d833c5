package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ScopeContainer and ScopePod are the labels of alignment metrics for the scope of an alignment, and OnNUMANode and
// OnPhysicalCPU those for the boundary within which resources are aligned.
const (
	ScopeContainer = "container"
	ScopePod       = "pod"
	OnNUMANode     = "numa_node"
	OnPhysicalCPU  = "physical_cpu"
)

// Allocation has the metrics of the allocations of CPUs and memory and of their alignment. Its methods are
// safe for concurrent use. On a nil receiver they do nothing.
type Allocation struct {
	cpus, cpusFailed, memory, memFailed prometheus.Counter
	aligned, unaligned                  *prometheus.CounterVec
	requests, refused                   prometheus.Counter
	took                                prometheus.Histogram
}

func (m *Allocation) fill(s *set) {
	m.cpus = s.counter(prefix+"cpu_manager_pinning_requests_total", "[ALPHA] The number of cpu core allocations which required pinning.")
	m.cpusFailed = s.counter(prefix+"cpu_manager_pinning_errors_total", "[ALPHA] The number of cpu core allocations which required pinning failed.")
	m.memory = s.counter(prefix+"memory_manager_pinning_requests_total", "[ALPHA] The number of memory pages allocations which required pinning.")
	m.memFailed = s.counter(prefix+"memory_manager_pinning_errors_total", "[ALPHA] The number of memory pages allocations which required pinning that failed.")
	m.aligned = s.counters(prefix+"container_aligned_compute_resources_count", "[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment type.", "scope", "boundary")
	m.unaligned = s.counters(prefix+"container_aligned_compute_resources_failure_count", "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by alignment type.", "scope", "boundary")
	m.requests = s.counter(prefix+"topology_manager_admission_requests_total", "[ALPHA] The number of admission requests where resources have to be aligned.")
	m.refused = s.counter(prefix+"topology_manager_admission_errors_total", "[ALPHA] The number of admission request failures where resources could not be aligned.")
	m.took = s.histogram(prefix+"topology_manager_admission_duration_ms", "[ALPHA] Duration in milliseconds to serve a pod admission request.", prometheus.ExponentialBuckets(.05, 2, 15))
	for _, scope := range []string{ScopeContainer, ScopePod} {
		m.aligned.WithLabelValues(scope, OnNUMANode)
		m.unaligned.WithLabelValues(scope, OnNUMANode)
	}
}

// CPUsPinned counts an attempt to allocate exclusive CPUs to a container. err is its result.
func (m *Allocation) CPUsPinned(err error) {
	if m == nil {
		return
	}
	m.cpus.Inc()
	if err != nil {
		m.cpusFailed.Inc()
	}
}

// MemoryPinned counts an attempt to allocate memory of NUMA nodes to a container. err is its result.
func (m *Allocation) MemoryPinned(err error) {
	if m == nil {
		return
	}
	m.memory.Inc()
	if err != nil {
		m.memFailed.Inc()
	}
}

// Aligned counts whether the resources of a container or pod (scope) could be aligned within a boundary, one
// of the constants.
func (m *Allocation) Aligned(scope, boundary string, ok bool) {
	switch {
	case m == nil:
	case ok:
		m.aligned.WithLabelValues(scope, boundary).Inc()
	default:
		m.unaligned.WithLabelValues(scope, boundary).Inc()
	}
}

// TopologyAdmission records the duration and the result of an admission by the topology manager.
func (m *Allocation) TopologyAdmission(took time.Duration, err error) {
	if m == nil {
		return
	}
	m.requests.Inc()
	m.took.Observe(float64(took.Milliseconds()))
	if err != nil {
		m.refused.Inc()
	}
}
