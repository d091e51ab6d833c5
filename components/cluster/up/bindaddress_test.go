package up

import (
	"testing"

	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/host/layout"
)

// TestBindAddress checks that the controller manager and the scheduler are not reachable from other
// machines by default.
func TestBindAddress(t *testing.T) {
	set, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "127.0.0.1:10257"},
		{[]string{"--bind-address=0.0.0.0"}, "0.0.0.0:10257"},
		{[]string{"--bind-address=::"}, "[::]:10257"},
	} {
		o := &upOptions{}
		if err := newCommand(o).ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		run := &clusterRun{pki: set, bindAddress: o.bindAddress}
		if got := run.componentServer(layout.PortControllerManager, nil).Addr; got != c.want {
			t.Errorf("up %v listens on %s, want %s", c.args, got, c.want)
		}
	}
}
