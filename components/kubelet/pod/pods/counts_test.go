package pods

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/cri/crifake"
)

// TestCensus checks the metrics of a pod's start and the number of pods.
func TestCensus(t *testing.T) {
	b := newBench(t, crifake.New("busybox:1"))
	b.add(newPod("a", func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }))
	p := b.await("a", "ready", ready)
	b.manager.Set(b.ctx, p)
	c := b.registry.Count()
	if c.Sandboxes != 1 || c.Containers["running"] != 1 || c.Desired != [2]int{1, 0} || c.Active != [2]int{1, 0} {
		t.Errorf("%+v", c)
	}
	if n := c.Working[WorkLabels{Lifecycle: "sync", Config: "desired"}]; n != 1 || len(c.Working) != 15 {
		t.Errorf("%+v", c.Working)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(b.host.Metrics)
	once := []string{
		"kubelet_pod_start_duration_seconds", "kubelet_pod_worker_start_duration_seconds", "kubelet_pod_start_total_duration_seconds", "kubelet_started_pods_total",
		"kubelet_started_containers_total", "kubelet_run_podsandbox_duration_seconds",
	}
	// Some metrics are updated after the API.
	var observed map[string]uint64
	for limit := time.After(time.Minute); ; {
		observed = map[string]uint64{}
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.Metric {
				observed[f.GetName()] += m.GetHistogram().GetSampleCount() + uint64(m.GetCounter().GetValue())
			}
		}
		if !slices.ContainsFunc(once, func(name string) bool { return observed[name] != 1 }) {
			return
		}
		select {
		case <-limit:
			t.Fatalf("observed %v", observed)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
