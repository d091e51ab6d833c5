package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
)

// crowd returns a state with 500 nodes in three zones and 2000 pods of twenty applications,
// modified by change.
func crowd(change ...func(*corev1.Pod)) *state.State {
	s := state.New()
	for i := range 500 {
		s.SetNode(node(fmt.Sprintf("n%d", i), zone(fmt.Sprintf("z%d", i%3))))
	}
	for i := range 2000 {
		p := pod(fmt.Sprintf("there%d", i), append([]func(*corev1.Pod){requests("100m"), labelled(map[string]string{"app": fmt.Sprintf("a%d", i%20)})}, change...)...)
		s.SetPod(state.NewPod(p), fmt.Sprintf("n%d", i%500))
	}
	return s
}

// spreadAndApart adds a spread constraint over zones and an anti-affinity to pods of the same
// application.
func spreadAndApart(p *corev1.Pod) {
	spread(corev1.LabelTopologyZone, 5)(p)
	antiAffinity(corev1.LabelHostname)(p)
}

func likeAll(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 10, PodAffinityTerm: corev1.PodAffinityTerm{
			TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
		}}},
	}}
}

// BenchmarkCycle schedules pods like Run, without an API server.
func BenchmarkCycle(b *testing.B) {
	for _, c := range []struct {
		name   string
		change []func(*corev1.Pod)
	}{
		{"plain", nil},
		{"spread+anti-affinity", []func(*corev1.Pod){spreadAndApart}},
		{"preferred affinity", []func(*corev1.Pod){likeAll}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := crowd(c.change...)
			set := plugins.Default()
			m, err := newMetrics(prometheus.NewRegistry())
			if err != nil {
				b.Fatal(err)
			}
			a := newPluginMetrics(m, corev1.DefaultSchedulerName, &set)
			var pods []*corev1.Pod
			for i := range 400 {
				pods = append(pods, pod(fmt.Sprintf("new%d", i), append([]func(*corev1.Pod){requests("10m"), labelled(map[string]string{"app": fmt.Sprintf("a%d", i%20)})}, c.change...)...))
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				info := state.NewPod(pods[i%len(pods)])
				cycle := &framework.Cycle{Pod: info, State: s, SpreadSelector: func(p *corev1.Pod) labels.Selector { return labels.SelectorFromSet(p.Labels) }}
				a.begin()
				n, failed := findNode(cycle, &set, a)
				if n == nil {
					b.Fatal(failed)
				}
				s.SetPod(info, n.Name)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
		})
	}
}

// BenchmarkPreempt finds preemption victims on 500 full nodes.
func BenchmarkPreempt(b *testing.B) {
	s := crowd(func(p *corev1.Pod) { requests("1")(p) })
	set := plugins.Default()
	p := pod("new", requests("2"), priority(10), labelled(map[string]string{"app": "a0"}))
	b.ReportAllocs()
	for b.Loop() {
		_, failed := findNode(&framework.Cycle{Pod: state.NewPod(p), State: s}, &set, nil)
		if preempt(failed, set.Preemption, nil, time.Unix(0, 0)) == nil {
			b.Fatal(failed)
		}
	}
}
