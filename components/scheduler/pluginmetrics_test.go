package scheduler

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
)

// TestPluginMetrics: plugin evaluations are counted by node and by attempt, and durations are measured in
// sampled attempts.
func TestPluginMetrics(t *testing.T) {
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	set := plugins.Default()
	a := newPluginMetrics(m, "p", &set)
	s := state.New()
	for _, name := range []string{"a", "b", "c"} {
		s.SetNode(node(name))
	}
	find := func(p *corev1.Pod) *fitError {
		_, failed := findNode(&framework.Cycle{Pod: state.NewPod(p), State: s}, &set, a)
		return failed
	}
	if failed := find(pod("fits", requests("1"))); failed != nil {
		t.Fatal(failed)
	}
	count := func(plugin, point string) float64 {
		return testutil.ToFloat64(m.evaluations.WithLabelValues(plugin, point, "p"))
	}
	for _, c := range []struct {
		plugin, point string
		want          float64
	}{
		{"NodeResourcesFit", "PreFilter", 1}, {"NodeResourcesFit", "Filter", 3}, {"NodeResourcesFit", "PreScore", 1}, {"NodeResourcesFit", "Score", 3},
		{"InterPodAffinity", "PreFilter", 0}, {"NodePorts", "Filter", 0},
	} {
		if got := count(c.plugin, c.point); got != c.want {
			t.Errorf("%s of %s: %v, want %v", c.point, c.plugin, got, c.want)
		}
	}
	if n := testutil.CollectAndCount(m.took); n != 0 {
		t.Errorf("%d durations of an attempt without sampling", n)
	}
	a.timed = true
	failed := find(pod("large", requests("1000")))
	if failed == nil {
		t.Fatal("a pod that is larger than all nodes has a node")
	}
	if got := failed.plugins(); len(got) != 1 || got[0] != "NodeResourcesFit" {
		t.Errorf("plugins that made the pod unschedulable: %v", got)
	}
	if got := count("NodeResourcesFit", "Filter"); got != 6 {
		t.Errorf("nodes that the filter evaluated: %v", got)
	}
	if n := testutil.CollectAndCount(m.took); n < 2 {
		t.Errorf("%d durations of a sampled attempt", n)
	}
}

// TestUnschedulableMetric: a pod counts for the plugins that made it unschedulable until it is
// tried again or deleted.
func TestUnschedulableMetric(t *testing.T) {
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	q := newQueue()
	q.onUnschedulable = m.unschedulableAdd
	now := time.Unix(100, 0)
	p := pod("p")
	p.Spec.SchedulerName = "s"
	expect := func(step string, fit, gates float64) {
		t.Helper()
		if got := testutil.ToFloat64(m.unschedulable.WithLabelValues("NodeResourcesFit", "s")); got != fit {
			t.Errorf("%s: %v without resources, want %v", step, got, fit)
		}
		if got := testutil.ToFloat64(m.unschedulable.WithLabelValues("SchedulingGates", "s")); got != gates {
			t.Errorf("%s: %v gated, want %v", step, got, gates)
		}
	}
	q.set(p, true, now)
	q.gatedBy(p.UID, "SchedulingGates")
	expect("gated", 0, 1)
	q.set(p, false, now)
	it := q.pop(now)
	expect("tried", 0, 0)
	q.setPlugins(it, "NodeResourcesFit")
	q.addUnschedulable(it, framework.NodeAdded, now)
	expect("turned down", 1, 0)
	q.onEvent(framework.NodeAdded, now.Add(time.Hour))
	expect("woken", 1, 0)
	if it = q.pop(now.Add(time.Hour)); it == nil {
		t.Fatal("the pod is not retried")
	}
	expect("tried again", 0, 0)
	q.setPlugins(it, "NodeResourcesFit")
	q.addUnschedulable(it, framework.NodeAdded, now)
	q.remove(p.UID)
	expect("gone", 0, 0)
}

// TestFlushed: a pod that is only retried because it was unschedulable for a long time is marked as
// such until it is unschedulable again.
func TestFlushed(t *testing.T) {
	q := newQueue()
	now := time.Unix(100, 0)
	q.set(pod("p"), false, now)
	it := q.pop(now)
	q.addUnschedulable(it, framework.NodeAdded, now)
	now = now.Add(maxWaiting)
	if it = q.pop(now); it == nil || !it.flushed {
		t.Fatalf("after a long wait: %+v", it)
	}
	q.addUnschedulable(it, framework.NodeAdded, now)
	q.onEvent(framework.NodeAdded, now)
	if it = q.pop(now.Add(time.Minute)); it == nil || it.flushed {
		t.Errorf("after an event: %+v", it)
	}
}
