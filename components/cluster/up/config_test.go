package up

import (
	"os"
	"strings"
	"testing"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/internal/host/layout"
)

// TestLoadOrCreateConfig checks that invalid options save no configuration, and that changed options of the
// first start are reported as ignored.
func TestLoadOrCreateConfig(t *testing.T) {
	l := layout.Under(t.TempDir())
	if err := os.MkdirAll(l.Data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, invalid := range []*upOptions{{nodes: -1}, {addons: []string{"none"}}, {podNetwork: "none"}, {nodeName: "Not_A_Name"}} {
		if _, _, err := invalid.loadOrCreateConfig(l); err == nil {
			t.Errorf("%+v is accepted", invalid)
		}
		if _, found, err := clusterconfig.Load(l); found || err != nil {
			t.Errorf("%+v is invalid, but the configuration was saved: %v", invalid, err)
		}
	}
	first := &upOptions{nodeName: "first", podCIDRs: []string{"10.9.0.0/16"}}
	id, _, err := first.loadOrCreateConfig(l)
	if err != nil || id.NodeName != "first" || len(first.ignoredFlags(id)) > 0 {
		t.Fatalf("%+v, %v", id, err)
	}
	later := &upOptions{nodeName: "other", podCIDRs: []string{"10.9.0.0/16"}, domain: "other.example"}
	if id, _, err = later.loadOrCreateConfig(l); err != nil || id.NodeName != "first" {
		t.Fatalf("%+v, %v", id, err)
	}
	texts := later.ignoredFlags(id)
	if len(texts) != 2 || !strings.HasPrefix(texts[0], "--node-name other is ignored: the cluster was created with first;") || !strings.HasPrefix(texts[1], "--cluster-domain other.example is ignored: ") {
		t.Errorf("got %q", texts)
	}
}
