package scheduler

import (
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
)

// sampled is the percentage of attempts in which the durations of plugins are measured. Measuring all would slow down
// scheduling.
const sampled = 10

// pluginMetrics records how often and how long the plugins of a profile run. Only the goroutine of Run uses it. The
// methods of a nil *pluginMetrics do nothing.
type pluginMetrics struct {
	m       *metrics
	profile string
	// filters and scores are in the order of the profile's plugins. An entry with nil counters
	// means that the plugin has no such extension point.
	filters, scores []pointCounters
	// timed is true if the plugin durations of this attempt are measured.
	timed bool
}

// pointCounters are the evaluation counters of one plugin. pre counts attempts (PreFilter or PreScore), and is nil if
// upstream's plugin does not implement that extension point. each counts nodes (Filter or Score).
type pointCounters struct{ pre, each prometheus.Counter }

// newPluginMetrics creates the counters for the plugins in set, the plugins of the profile with this name, in m.
func newPluginMetrics(m *metrics, profile string, set *plugins.Set) *pluginMetrics {
	a := &pluginMetrics{m: m, profile: profile}
	for _, p := range set.Filter {
		c := pointCounters{each: m.evaluations.WithLabelValues(p.Name(), "Filter", profile)}
		switch p.Name() {
		case "NodeUnschedulable", "NodeName", "TaintToleration":
		default:
			c.pre = m.evaluations.WithLabelValues(p.Name(), "PreFilter", profile)
		}
		a.filters = append(a.filters, c)
	}
	for _, p := range set.Score {
		c := pointCounters{each: m.evaluations.WithLabelValues(p.Name(), "Score", profile)}
		if p.Name() != "ImageLocality" {
			c.pre = m.evaluations.WithLabelValues(p.Name(), "PreScore", profile)
		}
		a.scores = append(a.scores, c)
	}
	return a
}

// begin starts an attempt and decides randomly whether the durations of its plugins are measured. a must not be nil.
func (a *pluginMetrics) begin() { a.timed = rand.IntN(100) < sampled }

// observePoint records how long all plugins of an extension point took together since began.
func (a *pluginMetrics) observePoint(point, status string, began time.Time) {
	if a != nil {
		a.m.point(a.profile, point, status, began)
	}
}

// startTime returns the current time to pass to filter, score or observe after a plugin call, or zero if this attempt
// is not measured.
func (a *pluginMetrics) startTime() time.Time {
	if a == nil || !a.timed {
		return time.Time{}
	}
	return time.Now()
}

// observe records the duration of a plugin call that started at began. It does nothing if began is zero.
func (a *pluginMetrics) observe(plugin, point, status string, began time.Time) {
	if !began.IsZero() {
		a.m.took.WithLabelValues(plugin, point, status).Observe(time.Since(began).Seconds())
	}
}

// filter counts the call of the i-th filter of the profile for a pod. k and err are the results of the call, and began
// is the time that startTime returned before it.
func (a *pluginMetrics) filter(i int, name string, k *framework.Check, err error, began time.Time) {
	if a == nil || a.filters[i].pre == nil {
		return
	}
	status := "Success"
	switch {
	case err != nil:
		status = "Error"
	case k == nil:
		status = "Skip"
	case k.Refused != "":
		status = "UnschedulableAndUnresolvable"
	}
	if status != "Skip" {
		a.filters[i].pre.Inc()
	}
	a.observe(name, "PreFilter", status, began)
}

// nodes counts the nodes that the filters of a search have evaluated since the last call. s may be nil.
func (a *pluginMetrics) nodes(s *search) {
	if a == nil || s == nil {
		return
	}
	for i := range s.checks {
		k := &s.checks[i]
		if k.nodes > 0 {
			a.filters[k.index].each.Add(float64(k.nodes))
			k.nodes = 0
		}
	}
}

// sampleNode measures the duration of each filter on a single node, if this attempt is measured. It does not measure
// all nodes, because reading the clock costs more than many filters.
func (a *pluginMetrics) sampleNode(s *search, n *state.Node) {
	if a == nil || !a.timed {
		return
	}
	for i := range s.checks {
		began := time.Now()
		reasons := s.checks[i].Node(n)
		status := "Success"
		for _, r := range reasons {
			status = "Unschedulable"
			if r.Unresolvable {
				status = "UnschedulableAndUnresolvable"
				break
			}
		}
		a.observe(s.checks[i].name, "Filter", status, began)
		if reasons != nil {
			return
		}
	}
}

// score counts that the i-th score plugin of the profile has scored a number of nodes. began is the time that
// startTime returned before the call.
func (a *pluginMetrics) score(i int, name string, nodes int, began time.Time) {
	if a == nil {
		return
	}
	if c := a.scores[i]; c.pre != nil {
		c.pre.Inc()
	}
	a.scores[i].each.Add(float64(nodes))
	a.observe(name, "Score", "Success", began)
}
