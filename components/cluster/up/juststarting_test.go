package up

import (
	"errors"
	"os"
	"testing"

	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/progress"
	"hyperkube/internal/layout"
)

// TestJustStarting: a second start, while the first has decided what the cluster is
// but made no keys yet, is told so, and not which file is missing.
func TestJustStarting(t *testing.T) {
	l := layout.Under(t.TempDir())
	if err := os.MkdirAll(l.Data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.Run, 0o755); err != nil {
		t.Fatal(err)
	}
	change := func() error {
		return (&upOptions{}).changeNodes(t.Context(), l, progress.New(func(progress.Step) {}))
	}
	if err := change(); !errors.Is(err, errJustStarting) {
		t.Errorf("before anything is decided: %v", err)
	}
	id, err := identity.New(identity.Cluster{NodeName: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if err := id.Save(l); err != nil {
		t.Fatal(err)
	}
	if err := change(); !errors.Is(err, errJustStarting) || err.Error() != errJustStarting.Error() {
		t.Errorf("before there are keys: %v", err)
	}
}
