package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Node has the metrics of the start of the node, of its cgroups and its runtime. Its methods are safe for
// concurrent use. On a nil receiver they do nothing.
type Node struct {
	before, untilAsked, asked, untilReady, all prometheus.Gauge
	cgroups                                    prometheus.Gauge
	cgroupOperations                           *prometheus.HistogramVec
	losing                                     *prometheus.GaugeVec
}

func (m *Node) fill(s *set) {
	m.before = s.gauge(prefix+"node_startup_pre_kubelet_duration_seconds", "[ALPHA] Duration in seconds of node startup before kubelet starts.")
	m.untilAsked = s.gauge(prefix+"node_startup_pre_registration_duration_seconds", "[ALPHA] Duration in seconds of node startup before registration.")
	m.asked = s.gauge(prefix+"node_startup_registration_duration_seconds", "[ALPHA] Duration in seconds of node startup during registration.")
	m.untilReady = s.gauge(prefix+"node_startup_post_registration_duration_seconds", "[ALPHA] Duration in seconds of node startup after registration.")
	m.all = s.gauge(prefix+"node_startup_duration_seconds", "[ALPHA] Duration in seconds of node startup in total.")
	m.losing = s.gauges(prefix+"cri_losing_support", "[ALPHA] The Kubernetes version in which support for the current version of the CRI runtime is dropped.", "version")
	m.cgroupOperations = s.histograms(prefix+"cgroup_manager_duration_seconds", "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.", nil, "operation_type")
	m.cgroups = s.gauge(prefix+"cgroup_version", "[ALPHA] cgroup version on the hosts.")
}

// Startup has the times of the steps of the start of a newly registered node. The zero time means unknown.
type Startup struct {
	Boot, Kubelet, RegistrationStarted, Registered, Ready time.Time
}

// NodeStarted records the durations of the steps of a node's start. It records nothing if the node was
// registered before.
func (m *Node) NodeStarted(s Startup) {
	if m == nil || s.Registered.IsZero() || s.Ready.IsZero() {
		return
	}
	if !s.Boot.IsZero() {
		m.before.Set(s.Kubelet.Sub(s.Boot).Seconds())
		m.all.Set(s.Ready.Sub(s.Boot).Seconds())
	}
	m.untilAsked.Set(s.RegistrationStarted.Sub(s.Kubelet).Seconds())
	m.asked.Set(s.Registered.Sub(s.RegistrationStarted).Seconds())
	m.untilReady.Set(s.Ready.Sub(s.Registered).Seconds())
}

// CgroupVersion records the cgroup version of the host, 1 or 2.
func (m *Node) CgroupVersion(n int) {
	if m != nil {
		m.cgroups.Set(float64(n))
	}
}

// supportedUntil is the first version of Kubernetes that requires every runtime to report its
// cgroup driver.
const supportedUntil = "1.38.0"

// LosingSupport records that the container runtime does not report its cgroup driver, which kubelets of
// version supportedUntil require.
func (m *Node) LosingSupport() {
	if m == nil {
		return
	}
	m.losing.WithLabelValues(supportedUntil).Set(1)
}

// Cgroup records how long the creation ("create"), change ("update") or removal ("destroy") of a pod's cgroup
// took.
func (m *Node) Cgroup(operation string, took time.Duration) {
	if m != nil {
		m.cgroupOperations.WithLabelValues(operation).Observe(took.Seconds())
	}
}
