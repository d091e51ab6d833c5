package up

import (
	"errors"
	"os"
	"testing"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/progress"
	"hyperkube/internal/host/layout"
)

// TestStillStarting checks the error of a second start while the first one has saved the
// configuration but not created keys yet.
func TestStillStarting(t *testing.T) {
	l := layout.Under(t.TempDir())
	if err := os.MkdirAll(l.Data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.Run, 0o755); err != nil {
		t.Fatal(err)
	}
	change := func() error {
		return (&upOptions{}).updateNodes(t.Context(), l, progress.New(func(progress.Step) {}))
	}
	if err := change(); !errors.Is(err, errStarting) {
		t.Errorf("without a configuration: %v", err)
	}
	id, err := clusterconfig.New(clusterconfig.Cluster{NodeName: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if err := id.Save(l); err != nil {
		t.Fatal(err)
	}
	if err := change(); !errors.Is(err, errStarting) || err.Error() != errStarting.Error() {
		t.Errorf("without keys: %v", err)
	}
}
