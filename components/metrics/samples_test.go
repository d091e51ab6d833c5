package metrics

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// kubeletMetrics returns the metrics of a kubelet with the timestamp at, in seconds.
func kubeletMetrics(at int64, node, web float64) string {
	return fmt.Sprintf(`# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total %[2]g %[1]d000
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1.5e+09 %[1]d000
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="web",namespace="a",pod="p"} %[3]g %[1]d000
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="web",namespace="a",pod="p"} 2048 %[1]d000
container_memory_working_set_bytes{container="new",namespace="a",pod="p"} 1 %[1]d000
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="a",pod="p"} 99 %[1]d000
`, at, node, web)
}

func TestUsage(t *testing.T) {
	now := time.Unix(5000, 0)
	var b scrapeStore
	for _, step := range []struct {
		text               string
		node, memory, web  string
		window             time.Duration
		nodeKnown, webThen bool
	}{
		{kubeletMetrics(1000, 10, 1), "", "", "", 0, false, false},
		{kubeletMetrics(1000, 10, 1), "", "", "", 0, false, false}, // a single measurement
		{kubeletMetrics(1010, 15, 1.25), "500m", "1500000000", "25m", 10 * time.Second, true, true},
		{kubeletMetrics(1030, 16, 0), "50m", "1500000000", "", 20 * time.Second, true, false}, // container restarted
		{kubeletMetrics(1040, 16, 1), "0", "1500000000", "100m", 10 * time.Second, true, true},
	} {
		s, err := parse(strings.NewReader(step.text), now)
		if err != nil {
			t.Fatal(err)
		}
		b.add("n", s)
		u, ok := b.node("n")
		if ok != step.nodeKnown {
			t.Fatalf("the node's usage is known: %v", ok)
		}
		if ok && (u.list.Cpu().String() != step.node || u.list.Memory().Value() != 1500000000 || u.window != step.window) {
			t.Errorf("got %v over %v", u.list, u.window)
		}
		got := b.pod("n", "a", "p")
		if (len(got) == 1) != step.webThen || len(got) > 1 {
			t.Fatalf("got %v", got)
		}
		if step.webThen && (got[0].name != "web" || got[0].list.Cpu().String() != step.web || got[0].list.Memory().Value() != 2048) {
			t.Errorf("got %v", got[0])
		}
	}
	b.retain(map[string]bool{})
	if _, ok := b.node("n"); ok {
		t.Error("usage of a removed node is still stored")
	}
	if _, err := parse(strings.NewReader("{{"), now); err == nil {
		t.Error("nonsense was read")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(kubeletMetrics(1, 2, 3))
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := parse(strings.NewReader(text), time.Unix(1, 0)); err == nil {
			var b scrapeStore
			b.add("n", s)
			b.node("n")
		}
	})
}
