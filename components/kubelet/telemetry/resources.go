package telemetry

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Scopes and boundaries of what is aligned.
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
	r.plugins = s.counters(own+"device_plugin_registration_total", "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.", "resource_name")
	r.allocated = s.histograms(own+"device_plugin_alloc_duration_seconds", "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.", nil, "resource_name")
	const api = own + "pod_resources_endpoint_"
	r.asked = s.counters(api+"requests_total", "[ALPHA] Cumulative number of requests to the PodResource endpoint. Broken down by server api version.", "server_api_version")
	r.askedFor, r.failed = map[string]*prometheus.CounterVec{}, map[string]*prometheus.CounterVec{}
	for method, path := range map[string]string{"List": "list", "Get": "get", "GetAllocatableResources": "get_allocatable"} {
		r.askedFor[method] = s.counters(api+"requests_"+path, "[ALPHA] Number of requests to the PodResource "+method+" endpoint. Broken down by server api version.", "server_api_version")
		r.failed[method] = s.counters(api+"errors_"+path, "[ALPHA] Number of requests to the PodResource "+method+" endpoint which returned error. Broken down by server api version.", "server_api_version")
	}
	const pods = own + "pod_requests_"
	r.podsAsked = s.counters(pods+"total", "[ALPHA] Cumulative number of requests to the PodsAPI endpoint. Broken down by server api version and status code.", "server_api_version", "status_code")
	r.podsAskedFor = map[string]*prometheus.CounterVec{}
	for method, name := range map[string]string{"ListPods": "List", "GetPod": "Get", "WatchPods": "Watch"} {
		r.podsAskedFor[method] = s.counters(pods+strings.ToLower(name)+"_total", "[ALPHA] Number of requests to the PodsAPI "+name+" endpoint. Broken down by server api version and status code.", "server_api_version", "status_code")
	}
	r.podsLost = s.counter(own+"pod_watch_events_dropped_total", "[ALPHA] Cumulative number of pod watch events dropped.")
	r.kept = s.gauge(own+"memory_qos_node_memory_min_bytes", "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and never reclaimed by the kernel.")
	r.keptSoftly = s.gauge(own+"memory_qos_node_memory_low_bytes", "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may be reclaimed under extreme pressure.")
	r.cpus = s.counter(own+"cpu_manager_pinning_requests_total", "[ALPHA] The number of cpu core allocations which required pinning.")
	r.cpusFailed = s.counter(own+"cpu_manager_pinning_errors_total", "[ALPHA] The number of cpu core allocations which required pinning failed.")
	r.memory = s.counter(own+"memory_manager_pinning_requests_total", "[ALPHA] The number of memory pages allocations which required pinning.")
	r.memFailed = s.counter(own+"memory_manager_pinning_errors_total", "[ALPHA] The number of memory pages allocations which required pinning that failed.")
	r.aligned = s.counters(own+"container_aligned_compute_resources_count", "[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment type.", "scope", "boundary")
	r.unaligned = s.counters(own+"container_aligned_compute_resources_failure_count", "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by alignment type.", "scope", "boundary")
	r.requests = s.counter(own+"topology_manager_admission_requests_total", "[ALPHA] The number of admission requests where resources have to be aligned.")
	r.refused = s.counter(own+"topology_manager_admission_errors_total", "[ALPHA] The number of admission request failures where resources could not be aligned.")
	r.took = s.histogram(own+"topology_manager_admission_duration_ms", "[ALPHA] Duration in milliseconds to serve a pod admission request.", prometheus.ExponentialBuckets(.05, 2, 15))
	claimBuckets := prometheus.ExponentialBucketsRange(.1, 40, 15)
	r.claims = s.histograms("dra_operations_duration_seconds", "[ALPHA] Duration in seconds of making the ResourceClaims of a pod ready (PrepareResources) and of taking them back (UnprepareResources)", claimBuckets, "operation_name", "is_error")
	r.claimCalls = s.histograms("dra_grpc_operations_duration_seconds", "[ALPHA] Duration in seconds of the DRA gRPC operations", claimBuckets, "driver_name", "method_name", "grpc_status_code")
	r.resizes = s.counters(own+"container_requested_resizes_total", "[ALPHA] Number of resizes that were asked for, by container, resource, whether of requests or limits, and the operation: add, remove, increase or decrease.", "resource", "requirement", "operation")
	r.resized = s.histograms(own+"pod_resize_duration_milliseconds", "[ALPHA] Duration in milliseconds to actuate a pod resize", []float64{10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000}, "success")
	r.infeasible = s.counters(own+"pod_infeasible_resizes_total", "[ALPHA] Number of infeasible resizes for pods.", "reason_detail")
	r.accepted = s.counters(own+"pod_deferred_accepted_resizes_total", "[ALPHA] Cumulative number of resizes that were accepted after being deferred.", "retry_trigger")
	r.deferred = s.histograms(own+"pod_deferred_resize_duration_seconds", "[ALPHA] Duration in seconds that a resize was deferred, by what came of it and by the priority of its pod.", []float64{5, 10, 15, 20, 30, 45, 60, 90, 120, 150, 180, 300, 600, 1200, 1800, 3600}, "resolution", "priority_bucket")
	for _, scope := range []string{ScopeContainer, ScopePod} {
		r.aligned.WithLabelValues(scope, OnNUMANode)
		r.unaligned.WithLabelValues(scope, OnNUMANode)
	}
}

// MemoryKept tells how many bytes of memory are kept for guaranteed pods, and for
// burstable ones.
func (m *Metrics) MemoryKept(guaranteed, burstable int64) {
	if m != nil {
		m.resources.kept.Set(float64(guaranteed))
		m.resources.keptSoftly.Set(float64(burstable))
	}
}

// PluginRegistered counts that a device plugin has come.
func (m *Metrics) PluginRegistered(resource string) {
	if m != nil {
		m.resources.plugins.WithLabelValues(resource).Inc()
	}
}

// DevicesAllocated notes a device plugin's answer.
func (m *Metrics) DevicesAllocated(resource string, took time.Duration) {
	if m != nil {
		m.resources.allocated.WithLabelValues(resource).Observe(took.Seconds())
	}
}

// ResourcesAsked counts a request to the kubelet's socket of pods' resources, by its
// method; err is its answer.
func (m *Metrics) ResourcesAsked(method, version string, err error) {
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

// PodsAsked counts a request to the kubelet's service of pods, by its method and
// how it was answered.
func (m *Metrics) PodsAsked(method, version, code string) {
	if m == nil {
		return
	}
	m.resources.podsAsked.WithLabelValues(version, code).Inc()
	if c := m.resources.podsAskedFor[method]; c != nil {
		c.WithLabelValues(version, code).Inc()
	}
}

// PodEventLost counts a client that was too late for an event of a pod.
func (m *Metrics) PodEventLost() {
	if m != nil {
		m.resources.podsLost.Inc()
	}
}

// CPUsPinned counts a container that was to get CPUs of its own.
func (m *Metrics) CPUsPinned(err error) {
	if m == nil {
		return
	}
	m.resources.cpus.Inc()
	if err != nil {
		m.resources.cpusFailed.Inc()
	}
}

// MemoryPinned counts a container that was to get memory of its own.
func (m *Metrics) MemoryPinned(err error) {
	if m == nil {
		return
	}
	m.resources.memory.Inc()
	if err != nil {
		m.resources.memFailed.Inc()
	}
}

// Aligned counts that what a container or pod got is within a boundary, or could not
// be.
func (m *Metrics) Aligned(scope, boundary string, ok bool) {
	switch {
	case m == nil:
	case ok:
		m.resources.aligned.WithLabelValues(scope, boundary).Inc()
	default:
		m.resources.unaligned.WithLabelValues(scope, boundary).Inc()
	}
}

// Placed notes that it was decided whether and where a pod has its resources near
// each other.
func (m *Metrics) Placed(took time.Duration, err error) {
	if m == nil {
		return
	}
	m.resources.requests.Inc()
	m.resources.took.Observe(float64(took.Milliseconds()))
	if err != nil {
		m.resources.refused.Inc()
	}
}

// Claims notes that a pod's claims were made ready ("PrepareResources") or taken
// back ("UnprepareResources").
func (m *Metrics) Claims(operation string, took time.Duration, err error) {
	if m != nil {
		m.resources.claims.WithLabelValues(operation, strconv.FormatBool(err != nil)).Observe(took.Seconds())
	}
}

// ClaimCall notes a call of a driver of claims.
func (m *Metrics) ClaimCall(driver, method, code string, took time.Duration) {
	if m != nil {
		m.resources.claimCalls.WithLabelValues(driver, method, code).Observe(took.Seconds())
	}
}
