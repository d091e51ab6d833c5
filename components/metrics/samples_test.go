package metrics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/metrics/history"
)

// kubeletSummary returns the summary of a kubelet that measured at the time at, in seconds. node and web are the CPU time of
// the node and of the container web, in seconds.
func kubeletSummary(at int64, node, web float64) string {
	text := func(seconds float64) string {
		return fmt.Sprintf(`{"time":%q,"usageCoreNanoSeconds":%.0f}`, time.Unix(at, 0).UTC().Format(time.RFC3339), seconds*1e9)
	}
	return fmt.Sprintf(`{"node":{"nodeName":"n","cpu":%[1]s,"memory":{"workingSetBytes":1500000000},"fs":{"capacityBytes":1000,"usedBytes":100},
"network":{"name":"eth0","rxBytes":%.0[4]f,"txBytes":7,"interfaces":[{"name":"eth0"}]}},
"pods":[{"podRef":{"name":"p","namespace":"a","uid":"u"},"cpu":%[2]s,"memory":{"workingSetBytes":4096},
"volume":[{"name":"data","pvcRef":{"name":"claim","namespace":"a"},"capacityBytes":500,"usedBytes":50},{"name":"tmp","usedBytes":1}],
"containers":[{"name":"web","cpu":%[3]s,"memory":{"workingSetBytes":2048}},{"name":"new","memory":{"workingSetBytes":1}}]}]}`,
		text(node), text(web), text(web), node*1000)
}

// parse returns the samples in a summary that was requested a second after the kubelet measured.
func parse(text string) (scrape, error) {
	s, err := readSummary(strings.NewReader(text), time.Unix(9e9, 0), time.Unix(9e9, 0))
	if err != nil {
		return nil, err
	}
	return samplesOf(s), nil
}

func TestUsage(t *testing.T) {
	var b scrapeStore
	for _, step := range []struct {
		text               string
		node, memory, web  string
		window             time.Duration
		nodeKnown, webThen bool
	}{
		{kubeletSummary(1000, 10, 1), "", "", "", 0, false, false},
		{kubeletSummary(1000, 10, 1), "", "", "", 0, false, false}, // a single measurement
		{kubeletSummary(1010, 15, 1.25), "500m", "1500000000", "25m", 10 * time.Second, true, true},
		{kubeletSummary(1030, 16, 0), "50m", "1500000000", "", 20 * time.Second, true, false}, // container restarted
		{kubeletSummary(1040, 16, 1), "0", "1500000000", "100m", 10 * time.Second, true, true},
	} {
		s, err := parse(step.text)
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
	if _, err := parse("{{"); err == nil {
		t.Error("nonsense was read")
	}
}

// TestCorrectTime checks which time of a measurement is used: that of the request, unless the kubelet measured before.
func TestCorrectTime(t *testing.T) {
	begin := time.Unix(100, 5e8)
	end := begin.Add(time.Second)
	for _, test := range []struct{ reported, want time.Time }{
		{time.Time{}, begin}, {time.Unix(99, 0), time.Unix(99, 0)}, {time.Unix(100, 0), begin}, {time.Unix(101, 0), begin}, {time.Unix(102, 0), time.Unix(102, 0)},
	} {
		if got := correctTime(test.reported, begin, end); !got.Equal(test.want) {
			t.Errorf("reported %v: got %v, want %v", test.reported, got, test.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(kubeletSummary(1, 2, 3))
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := readSummary(strings.NewReader(text), time.Unix(1, 0), time.Unix(2, 0)); err == nil {
			var b scrapeStore
			b.add("n", samplesOf(s))
			b.node("n")
			r := recorder{store: history.NewStore(history.Limit), pods: corelisters.NewPodLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil))}
			r.record(time.Unix(1000, 0), "n", s)
		}
	})
}
