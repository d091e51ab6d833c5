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
	n.before = s.gauge(own+"node_startup_pre_kubelet_duration_seconds", "[ALPHA] Duration in seconds of node startup before kubelet starts.")
	n.untilAsked = s.gauge(own+"node_startup_pre_registration_duration_seconds", "[ALPHA] Duration in seconds of node startup before registration.")
	n.asked = s.gauge(own+"node_startup_registration_duration_seconds", "[ALPHA] Duration in seconds of node startup during registration.")
	n.untilReady = s.gauge(own+"node_startup_post_registration_duration_seconds", "[ALPHA] Duration in seconds of node startup after registration.")
	n.all = s.gauge(own+"node_startup_duration_seconds", "[ALPHA] Duration in seconds of node startup in total.")
	n.cgroups = s.gauge(own+"cgroup_version", "[ALPHA] cgroup version on the hosts.")
}

// Startup is when a node that was not registered before came up. What is zero is
// not known.
type Startup struct {
	Boot, Kubelet, Asked, Registered, Ready time.Time
}

// NodeStarted tells how long a node's start took. Of one that had been registered
// before nothing is told.
func (m *Metrics) NodeStarted(s Startup) {
	if m == nil || s.Registered.IsZero() || s.Ready.IsZero() {
		return
	}
	if !s.Boot.IsZero() {
		m.node.before.Set(s.Kubelet.Sub(s.Boot).Seconds())
		m.node.all.Set(s.Ready.Sub(s.Boot).Seconds())
	}
	m.node.untilAsked.Set(s.Asked.Sub(s.Kubelet).Seconds())
	m.node.asked.Set(s.Registered.Sub(s.Asked).Seconds())
	m.node.untilReady.Set(s.Ready.Sub(s.Registered).Seconds())
}

// CgroupVersion tells which the host has.
func (m *Metrics) CgroupVersion(n int) {
	if m != nil {
		m.node.cgroups.Set(float64(n))
	}
}
