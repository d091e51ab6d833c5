package browser

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"
	"time"
)

// history waits until the history of an object has samples of its CPU usage.
func history(t *testing.T, path string) {
	t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for {
		out, err := exec.CommandContext(t.Context(), binary, "kubectl", "get", "--raw", "/apis/history.metrics.hyperkube.io/v1alpha1/"+path).CombinedOutput()
		var got struct {
			Series map[string]struct{ Values []*float64 }
		}
		if err == nil && json.Unmarshal(out, &got) == nil {
			for _, v := range got.Series["cpu"].Values {
				if v != nil {
					return
				}
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no history of %s: %v %s", path, err, out)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// TestMetrics shows the history of a pod, a node and the cluster as charts and as tables.
func TestMetrics(t *testing.T) {
	deploy(t)
	node := kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	history(t, "namespaces/default/pods/client")
	history(t, "nodes/"+node)
	b := newTab(t, serve(t))
	for _, p := range []struct{ name, path string }{
		{"pod", "/r/core/v1/pods/default/client"}, {"node", "/r/core/v1/nodes/-/" + node}, {"cluster", "/"},
	} {
		t.Run(p.name, func(t *testing.T) {
			b := &tab{T: t, ctx: b.ctx, url: b.url, events: b.events}
			b.open(p.path)
			for i, metric := range []string{`CPU \(cores\)`, "Memory"} {
				b.until(fmt.Sprintf(`document.querySelectorAll(".metrics figure")[%d]?.innerText.match(/^%s \S.* now, .* on average, at most/)`, i, metric))
				b.until(fmt.Sprintf(`document.querySelectorAll(".metrics figure [role=img] canvas")[%d]?.width > 200`, i))
			}
			b.click(".metrics summary", "Table")
			b.until(`document.querySelectorAll(".metrics tbody tr").length > 0`)
			b.until(`(document.querySelector(".metrics").scrollIntoView(), true)`)
			b.shot("metrics-" + p.name)
			b.clean()
		})
	}
}
