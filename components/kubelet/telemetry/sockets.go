package telemetry

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Sockets has the metrics of requests to the gRPC APIs that the kubelet serves on sockets of the node. Its
// methods are safe for concurrent use. On a nil receiver they do nothing.
type Sockets struct {
	asked            *prometheus.CounterVec
	askedFor, failed map[string]*prometheus.CounterVec // by method
	podsAsked        *prometheus.CounterVec
	podsAskedFor     map[string]*prometheus.CounterVec // by method
	podsLost         prometheus.Counter
}

func (m *Sockets) fill(s *set) {
	const api = prefix + "pod_resources_endpoint_"
	m.asked = s.counters(api+"requests_total", "[ALPHA] Cumulative number of requests to the PodResource endpoint. Broken down by server api version.", "server_api_version")
	m.askedFor, m.failed = map[string]*prometheus.CounterVec{}, map[string]*prometheus.CounterVec{}
	for method, path := range map[string]string{"List": "list", "Get": "get", "GetAllocatableResources": "get_allocatable"} {
		m.askedFor[method] = s.counters(api+"requests_"+path, "[ALPHA] Number of requests to the PodResource "+method+" endpoint. Broken down by server api version.", "server_api_version")
		m.failed[method] = s.counters(api+"errors_"+path, "[ALPHA] Number of requests to the PodResource "+method+" endpoint which returned error. Broken down by server api version.", "server_api_version")
	}
	const pods = prefix + "pod_requests_"
	m.podsAsked = s.counters(pods+"total", "[ALPHA] Cumulative number of requests to the PodsAPI endpoint. Broken down by server api version and status code.", "server_api_version", "status_code")
	m.podsAskedFor = map[string]*prometheus.CounterVec{}
	for method, name := range map[string]string{"ListPods": "List", "GetPod": "Get", "WatchPods": "Watch"} {
		m.podsAskedFor[method] = s.counters(pods+strings.ToLower(name)+"_total", "[ALPHA] Number of requests to the PodsAPI "+name+" endpoint. Broken down by server api version and status code.", "server_api_version", "status_code")
	}
	m.podsLost = s.counter(prefix+"pod_watch_events_dropped_total", "[ALPHA] Cumulative number of pod watch events dropped.")
}

// PodResourcesRequest counts a request to the PodResources API and its result. version is the API version,
// such as "v1".
func (m *Sockets) PodResourcesRequest(method, version string, err error) {
	if m == nil {
		return
	}
	m.asked.WithLabelValues(version).Inc()
	if c := m.askedFor[method]; c != nil {
		c.WithLabelValues(version).Inc()
	}
	if c := m.failed[method]; c != nil && err != nil {
		c.WithLabelValues(version).Inc()
	}
}

// PodsAPIRequest counts a request to the pods API. version is the API version, and code the gRPC code of the
// result.
func (m *Sockets) PodsAPIRequest(method, version, code string) {
	if m == nil {
		return
	}
	m.podsAsked.WithLabelValues(version, code).Inc()
	if c := m.podsAskedFor[method]; c != nil {
		c.WithLabelValues(version, code).Inc()
	}
}

// PodsAPIEventDropped counts a watch of the pods API that was closed because its client was too slow.
func (m *Sockets) PodsAPIEventDropped() {
	if m != nil {
		m.podsLost.Inc()
	}
}
