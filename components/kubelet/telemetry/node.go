package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type nodeMetrics struct {
	before, untilAsked, asked, untilReady, all prometheus.Gauge
	cgroups                                    prometheus.Gauge
}

func (n *nodeMetrics) fill(s *set) {
	n.before = s.gauge(prefix+"node_startup_pre_kubelet_duration_seconds", "[ALPHA] Duration in seconds of node startup before kubelet starts.")
	n.untilAsked = s.gauge(prefix+"node_startup_pre_registration_duration_seconds", "[ALPHA] Duration in seconds of node startup before registration.")
	n.asked = s.gauge(prefix+"node_startup_registration_duration_seconds", "[ALPHA] Duration in seconds of node startup during registration.")
	n.untilReady = s.gauge(prefix+"node_startup_post_registration_duration_seconds", "[ALPHA] Duration in seconds of node startup after registration.")
	n.all = s.gauge(prefix+"node_startup_duration_seconds", "[ALPHA] Duration in seconds of node startup in total.")
	n.cgroups = s.gauge(prefix+"cgroup_version", "[ALPHA] cgroup version on the hosts.")
}

// Startup has the times of the startup of a newly registered node. The zero time means unknown.
type Startup struct {
	Boot, Kubelet, RegistrationStarted, Registered, Ready time.Time
}

// NodeStarted records the durations of a node's startup, unless the node was registered before.
func (m *Metrics) NodeStarted(s Startup) {
	if m == nil || s.Registered.IsZero() || s.Ready.IsZero() {
		return
	}
	if !s.Boot.IsZero() {
		m.node.before.Set(s.Kubelet.Sub(s.Boot).Seconds())
		m.node.all.Set(s.Ready.Sub(s.Boot).Seconds())
	}
	m.node.untilAsked.Set(s.RegistrationStarted.Sub(s.Kubelet).Seconds())
	m.node.asked.Set(s.Registered.Sub(s.RegistrationStarted).Seconds())
	m.node.untilReady.Set(s.Ready.Sub(s.Registered).Seconds())
}

// CgroupVersion records the cgroup version of the host.
func (m *Metrics) CgroupVersion(n int) {
	if m != nil {
		m.node.cgroups.Set(float64(n))
	}
}
