package up

import (
	"strings"
	"testing"

	"hyperkube/components/cluster/clusterconfig"
)

// TestPool checks the errors of pools that contain addresses of the cluster.
func TestPool(t *testing.T) {
	id := clusterconfig.Cluster{PodCIDRs: []string{"10.244.0.0/16", "fd00:10:244::/56"}, ServiceCIDRs: []string{"10.96.0.0/16"}}
	additional := additionalNodes{Count: 3, Subnet: "192.168.94.0/24"}
	for text, want := range map[string]string{
		"":                            "",
		"203.0.113.0/28,fd00:1::/120": "",
		"203.0.113.0/28,203.0.113.9":  "203.0.113.9 overlaps with 203.0.113.0/28",
		"10.244.7.0/24":               "overlaps with a CIDR of pods, 10.244.0.0/16: choose unused addresses",
		"fd00:10:244::100":            "a CIDR of pods",
		"10.96.0.0/24":                "a CIDR of Services",
		"192.168.94.1-192.168.94.9":   "contains 192.168.94.1, an address of a node of this machine",
		"192.168.94.3":                "contains 192.168.94.3",
		"192.168.94.4-192.168.94.9":   "",
		"fd00:192:168:94::3":          "contains fd00:192:168:94::3",
		"fd00:192:168:94::100":        "",
	} {
		var texts []string
		if text != "" {
			texts = strings.Split(text, ",")
		}
		pool, err := newPool(texts, id, additional)
		if want == "" && (err != nil || pool.String() != text) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %s, %v; want %q", text, pool, err, want)
		}
	}
	if _, err := newPool([]string{"192.168.94.1"}, id, additionalNodes{Count: 1}); err != nil {
		t.Errorf("without additional nodes: %v", err)
	}
}
