package telemetry

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Scopes and boundaries of alignment.
const (
	ScopeContainer = "container"
	ScopePod       = "pod"
	OnNUMANode     = "numa_node"
	OnPhysicalCPU  = "physical_cpu"
)

type resourceMetrics struct {
	kept, keptSoftly prometheus.Gauge

	plugins                             *prometheus.CounterVec
	allocated                           *prometheus.HistogramVec
	asked                               *prometheus.CounterVec
	askedFor, failed                    map[string]*prometheus.CounterVec // by method
	podsAsked                           *prometheus.CounterVec
	podsAskedFor                        map[string]*prometheus.CounterVec // by method
	podsLost                            prometheus.Counter
	cpus, cpusFailed, memory, memFailed prometheus.Counter
	aligned, unaligned                  *prometheus.CounterVec
	requests, refused                   prometheus.Counter
	took                                prometheus.Histogram
	claims, claimCalls                  *prometheus.HistogramVec
	resizes                             *prometheus.CounterVec
	resized, deferred                   *prometheus.HistogramVec
	infeasible, accepted                *prometheus.CounterVec
}

func (r *resourceMetrics) fill(s *set) {
	r.plugins = s.counters(prefix+"device_plugin_registration_total", "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.", "resource_name")
	r.allocated = s.histograms(prefix+"device_plugin_alloc_duration_seconds", "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.", nil, "resource_name")
	const api = prefix + "pod_resources_endpoint_"
	r.asked = s.counters(api+"requests_total", "[ALPHA] Cumulative number of requests to the PodResource endpoint. Broken down by server api version.", "server_api_version")
	r.askedFor, r.failed = map[string]*prometheus.CounterVec{}, map[string]*prometheus.CounterVec{}
	for method, path := range map[string]string{"List": "list", "Get": "get", "GetAllocatableResources": "get_allocatable"} {
		r.askedFor[method] = s.counters(api+"requests_"+path, "[ALPHA] Number of requests to the PodResource "+method+" endpoint. Broken down by server api version.", "server_api_version")
		r.failed[method] = s.counters(api+"errors_"+path, "[ALPHA] Number of requests to the PodResource "+method+" endpoint which returned error. Broken down by server api version.", "server_api_version")
	}
	const pods = prefix + "pod_requests_"
	r.podsAsked = s.counters(pods+"total", "[ALPHA] Cumulative number of requests to the PodsAPI endpoint. Broken down by server api version and status code.", "server_api_version", "status_code")
	r.podsAskedFor = map[string]*prometheus.CounterVec{}
	for method, name := range map[string]string{"ListPods": "List", "GetPod": "Get", "WatchPods": "Watch"} {
		r.podsAskedFor[method] = s.counters(pods+strings.ToLower(name)+"_total", "[ALPHA] Number of requests to the PodsAPI "+name+" endpoint. Broken down by server api version and status code.", "server_api_version", "status_code")
	}
	r.podsLost = s.counter(prefix+"pod_watch_events_dropped_total", "[ALPHA] Cumulative number of pod watch events dropped.")
	r.kept = s.gauge(prefix+"memory_qos_node_memory_min_bytes", "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and never reclaimed by the kernel.")
	r.keptSoftly = s.gauge(prefix+"memory_qos_node_memory_low_bytes", "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may be reclaimed under extreme pressure.")
	r.cpus = s.counter(prefix+"cpu_manager_pinning_requests_total", "[ALPHA] The number of cpu core allocations which required pinning.")
	r.cpusFailed = s.counter(prefix+"cpu_manager_pinning_errors_total", "[ALPHA] The number of cpu core allocations which required pinning failed.")
	r.memory = s.counter(prefix+"memory_manager_pinning_requests_total", "[ALPHA] The number of memory pages allocations which required pinning.")
	r.memFailed = s.counter(prefix+"memory_manager_pinning_errors_total", "[ALPHA] The number of memory pages allocations which required pinning that failed.")
	r.aligned = s.counters(prefix+"container_aligned_compute_resources_count", "[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment type.", "scope", "boundary")
	r.unaligned = s.counters(prefix+"container_aligned_compute_resources_failure_count", "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by alignment type.", "scope", "boundary")
	r.requests = s.counter(prefix+"topology_manager_admission_requests_total", "[ALPHA] The number of admission requests where resources have to be aligned.")
	r.refused = s.counter(prefix+"topology_manager_admission_errors_total", "[ALPHA] The number of admission request failures where resources could not be aligned.")
	r.took = s.histogram(prefix+"topology_manager_admission_duration_ms", "[ALPHA] Duration in milliseconds to serve a pod admission request.", prometheus.ExponentialBuckets(.05, 2, 15))
	claimBuckets := prometheus.ExponentialBucketsRange(.1, 40, 15)
	r.claims = s.histograms("dra_operations_duration_seconds", "[ALPHA] Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod starts or stops. Identified by the name of the operation (PrepareResources or UnprepareResources) and separated by the success of the operation. The number of failed operations is provided through the histogram's overall count.", claimBuckets, "operation_name", "is_error")
	r.claimCalls = s.histograms("dra_grpc_operations_duration_seconds", "[ALPHA] Duration in seconds of the DRA gRPC operations", claimBuckets, "driver_name", "method_name", "grpc_status_code")
	r.resizes = s.counters(prefix+"container_requested_resizes_total", "[ALPHA] Number of requested resizes, counted at the container level. Different resources on the same container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; the 'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.", "resource", "requirement", "operation")
	r.resized = s.histograms(prefix+"pod_resize_duration_milliseconds", "[ALPHA] Duration in milliseconds to actuate a pod resize", []float64{10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000}, "success")
	r.infeasible = s.counters(prefix+"pod_infeasible_resizes_total", "[ALPHA] Number of infeasible resizes for pods.", "reason_detail")
	r.accepted = s.counters(prefix+"pod_deferred_accepted_resizes_total", "[ALPHA] Cumulative number of resizes that were accepted after being deferred.", "retry_trigger")
	r.deferred = s.histograms(prefix+"pod_deferred_resize_duration_seconds", "[ALPHA] Duration in seconds that a pod resize was deferred, by its resolution and by the priority of the pod.", []float64{5, 10, 15, 20, 30, 45, 60, 90, 120, 150, 180, 300, 600, 1200, 1800, 3600}, "resolution", "priority_bucket")
	for _, scope := range []string{ScopeContainer, ScopePod} {
		r.aligned.WithLabelValues(scope, OnNUMANode)
		r.unaligned.WithLabelValues(scope, OnNUMANode)
	}
}

// MemoryProtected records the protected memory of Guaranteed and of Burstable pods in bytes.
func (m *Metrics) MemoryProtected(guaranteed, burstable int64) {
	if m != nil {
		m.resources.kept.Set(float64(guaranteed))
		m.resources.keptSoftly.Set(float64(burstable))
	}
}

// PluginRegistered counts a registration of a device plugin.
func (m *Metrics) PluginRegistered(resource string) {
	if m != nil {
		m.resources.plugins.WithLabelValues(resource).Inc()
	}
}

// DevicesAllocated records the duration of an allocation by a device plugin.
func (m *Metrics) DevicesAllocated(resource string, took time.Duration) {
	if m != nil {
		m.resources.allocated.WithLabelValues(resource).Observe(took.Seconds())
	}
}

// PodResourcesRequest counts a request to the PodResources API and its result.
func (m *Metrics) PodResourcesRequest(method, version string, err error) {
	if m == nil {
		return
	}
	m.resources.asked.WithLabelValues(version).Inc()
	if c := m.resources.askedFor[method]; c != nil {
		c.WithLabelValues(version).Inc()
	}
	if c := m.resources.failed[method]; c != nil && err != nil {
		c.WithLabelValues(version).Inc()
	}
}

// PodsAPIRequest counts a request to the pods API and its result.
func (m *Metrics) PodsAPIRequest(method, version, code string) {
	if m == nil {
		return
	}
	m.resources.podsAsked.WithLabelValues(version, code).Inc()
	if c := m.resources.podsAskedFor[method]; c != nil {
		c.WithLabelValues(version, code).Inc()
	}
}

// PodsAPIEventDropped counts a watch that was closed because the client was too slow.
func (m *Metrics) PodsAPIEventDropped() {
	if m != nil {
		m.resources.podsLost.Inc()
	}
}

// CPUsPinned counts an allocation of exclusive CPUs.
func (m *Metrics) CPUsPinned(err error) {
	if m == nil {
		return
	}
	m.resources.cpus.Inc()
	if err != nil {
		m.resources.cpusFailed.Inc()
	}
}

// MemoryPinned counts an allocation of pinned memory.
func (m *Metrics) MemoryPinned(err error) {
	if m == nil {
		return
	}
	m.resources.memory.Inc()
	if err != nil {
		m.resources.memFailed.Inc()
	}
}

// Aligned counts whether the resources of a container or pod are aligned within a boundary.
func (m *Metrics) Aligned(scope, boundary string, ok bool) {
	switch {
	case m == nil:
	case ok:
		m.resources.aligned.WithLabelValues(scope, boundary).Inc()
	default:
		m.resources.unaligned.WithLabelValues(scope, boundary).Inc()
	}
}

// TopologyAdmission records an admission by the topology manager.
func (m *Metrics) TopologyAdmission(took time.Duration, err error) {
	if m == nil {
		return
	}
	m.resources.requests.Inc()
	m.resources.took.Observe(float64(took.Milliseconds()))
	if err != nil {
		m.resources.refused.Inc()
	}
}

// Claims records that a pod's claims were prepared ("PrepareResources") or unprepared
// ("UnprepareResources").
func (m *Metrics) Claims(operation string, took time.Duration, err error) {
	if m != nil {
		m.resources.claims.WithLabelValues(operation, strconv.FormatBool(err != nil)).Observe(took.Seconds())
	}
}

// ClaimCall records a call to a DRA driver.
func (m *Metrics) ClaimCall(driver, method, code string, took time.Duration) {
	if m != nil {
		m.resources.claimCalls.WithLabelValues(driver, method, code).Observe(took.Seconds())
	}
}
