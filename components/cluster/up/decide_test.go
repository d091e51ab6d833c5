package up

import (
	"os"
	"strings"
	"testing"

	"hyperkube/components/cluster/identity"
	"hyperkube/internal/layout"
)

// TestDecide: what is refused leaves nothing behind that a later start would take for decided,
// and flags that come too late are told.
func TestDecide(t *testing.T) {
	l := layout.Under(t.TempDir())
	if err := os.MkdirAll(l.Data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []*upOptions{{nodes: -1}, {with: []string{"none"}}, {podNetwork: "none"}, {nodeName: "Not_A_Name"}} {
		if _, _, err := bad.decide(l); err == nil {
			t.Errorf("%+v is taken", bad)
		}
		if _, there, err := identity.Load(l); there || err != nil {
			t.Errorf("%+v is refused, and the cluster decided: %v", bad, err)
		}
	}
	first := &upOptions{nodeName: "first", podCIDRs: []string{"10.9.0.0/16"}}
	id, _, err := first.decide(l)
	if err != nil || id.NodeName != "first" || len(first.unheeded(id)) > 0 {
		t.Fatalf("%+v, %v", id, err)
	}
	later := &upOptions{nodeName: "other", podCIDRs: []string{"10.9.0.0/16"}, domain: "other.example"}
	if id, _, err = later.decide(l); err != nil || id.NodeName != "first" {
		t.Fatalf("%+v, %v", id, err)
	}
	texts := later.unheeded(id)
	if len(texts) != 2 || !strings.HasPrefix(texts[0], "--node-name other is not heeded: it is first ") || !strings.HasPrefix(texts[1], "--cluster-domain other.example is not heeded: ") {
		t.Errorf("told %q", texts)
	}
}
