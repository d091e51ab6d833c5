package scheduler

import (
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
)

// sampled is of how many attempts in a hundred it is told how long plugins took.
const sampled = 10

// asked counts what the plugins of a profile are asked in the extension points that
// upstream counts. It belongs to the goroutine of Run; nil counts nothing.
type asked struct {
	m       *metrics
	profile string
	// filters and scores are in the order of the profile's plugins; nil: there is
	// no such extension point of the plugin.
	filters, scores []pointCounters
	// timed: this attempt is one of those of which it is told how long plugins
	// took.
	timed bool
}

// pointCounters are of one plugin: once an attempt, and once a node.
type pointCounters struct{ pre, each prometheus.Counter }

// newAsked makes the counters of a profile.
func newAsked(m *metrics, profile string, set *plugins.Set) *asked {
	a := &asked{m: m, profile: profile}
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

// begin begins an attempt.
func (a *asked) begin() { a.timed = rand.IntN(100) < sampled }

// point tells how long all plugins of an extension point took.
func (a *asked) point(point, status string, began time.Time) {
	if a != nil {
		a.m.point(a.profile, point, status, began)
	}
}

// clock is when a plugin is asked, zero when it is not told how long it takes.
func (a *asked) clock() time.Time {
	if a == nil || !a.timed {
		return time.Time{}
	}
	return time.Now()
}

// took tells how long a plugin took.
func (a *asked) took(plugin, point, status string, began time.Time) {
	if !began.IsZero() {
		a.m.took.WithLabelValues(plugin, point, status).Observe(time.Since(began).Seconds())
	}
}

// filter counts that the i-th filter looked at the pod, and says what it made of it.
func (a *asked) filter(i int, name string, k *framework.Check, err error, began time.Time) {
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
	a.took(name, "PreFilter", status, began)
}

// nodes counts at how many nodes the filters of a search have looked since it was
// last called.
func (a *asked) nodes(s *search) {
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

// one tells how long each filter takes for one node, which stands for all: to look
// at the clock for each costs more than many a filter.
func (a *asked) one(s *search, n *state.Node) {
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
		a.took(s.checks[i].name, "Filter", status, began)
		if reasons != nil {
			return
		}
	}
}

// score counts that the i-th score has ranked so many nodes.
func (a *asked) score(i int, name string, nodes int, began time.Time) {
	if a == nil {
		return
	}
	if c := a.scores[i]; c.pre != nil {
		c.pre.Inc()
	}
	a.scores[i].each.Add(float64(nodes))
	a.took(name, "Score", "Success", began)
}
