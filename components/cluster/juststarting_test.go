package cluster

import (
	"errors"
	"testing"

	"hyperkube/internal/layout"
)

// TestJustStarting: a second start, while the first has decided what the cluster is
// but made no keys yet, is told so, and not which file is missing.
func TestJustStarting(t *testing.T) {
	l := layout.Under(t.TempDir())
	mustMkdir(t, l.Data)
	mustMkdir(t, l.Run)
	change := func() error {
		return (&upOptions{}).changeNodes(t.Context(), l, newSteps(func(step) {}))
	}
	if err := change(); !errors.Is(err, errJustStarting) {
		t.Errorf("before anything is decided: %v", err)
	}
	id, err := newIdentity(identity{NodeName: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if err := id.save(l); err != nil {
		t.Fatal(err)
	}
	if err := change(); !errors.Is(err, errJustStarting) || err.Error() != errJustStarting.Error() {
		t.Errorf("before there are keys: %v", err)
	}
}
