package nodestatus

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestChanges(t *testing.T) {
	status := func(boot string, conditions ...string) *v1.NodeStatus {
		s := &v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{BootID: boot}}
		for _, c := range conditions {
			kind, value, _ := strings.Cut(c, "=")
			s.Conditions = append(s.Conditions, v1.NodeCondition{Type: v1.NodeConditionType(kind), Status: v1.ConditionStatus(value)})
		}
		return s
	}
	for name, c := range map[string]struct {
		before, after *v1.NodeStatus
		want          string
	}{
		"at first": {
			status(""), status("a", "MemoryPressure=False", "DiskPressure=False", "PIDPressure=False", "Ready=False"),
			"NodeHasSufficientMemory NodeHasNoDiskPressure NodeHasSufficientPID",
		},
		"ready":    {status("a", "Ready=False"), status("a", "Ready=True"), "NodeReady"},
		"lost":     {status("a", "Ready=Unknown"), status("a", "Ready=True"), "NodeReady"},
		"not":      {status("a", "Ready=True"), status("a", "Ready=False"), "NodeNotReady"},
		"same":     {status("a", "Ready=True", "DiskPressure=True"), status("a", "Ready=True", "DiskPressure=True"), ""},
		"pressure": {status("a", "MemoryPressure=False", "PIDPressure=False"), status("a", "MemoryPressure=True", "PIDPressure=True"), "NodeHasInsufficientMemory NodeHasInsufficientPID"},
		"disk":     {status("a", "DiskPressure=Unknown"), status("a", "DiskPressure=True"), "NodeHasDiskPressure"},
		"boot":     {status("a"), status("b"), "Rebooted"},
	} {
		var got []string
		for _, n := range changeEvents("n", c.before, c.after) {
			got = append(got, n.reason)
			want := "Node n status is now: " + n.reason
			if n.reason == "Rebooted" {
				want = "Node n has been rebooted, boot id: b"
			}
			if n.message != want {
				t.Errorf("%s: %q, want %q", name, n.message, want)
			}
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}
