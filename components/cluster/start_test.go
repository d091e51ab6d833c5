package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"hyperkube/internal/layout"
)

// TestOwnSettings: a cluster below a root of its own has the machine's settings but
// for those that are below its root, and so have its further nodes.
func TestOwnSettings(t *testing.T) {
	root := t.TempDir()
	l := layout.Under(root)
	if got := ownSettings(l); len(got) > 0 {
		t.Errorf("without any: %q", got)
	}
	file := filepath.Join(root, "etc/hyperkube/registries.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range []layout.Node{l, l.Numbered(2)} {
		o, err := runtimeOptions(n, "")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(o.Args, "--registry-config="+file) {
			t.Errorf("its own is not told: %q", o.Args)
		}
	}
	if got := ownSettings(layout.Default()); len(got) > 0 {
		t.Errorf("of the usual place: %q", got)
	}
}
