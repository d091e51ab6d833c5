package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// TestRuntimeKnowsKubelet: the runtime is told of a kubelet's directory that drivers
// in pods know by another path, for devices are described with that.
func TestRuntimeKnowsKubelet(t *testing.T) {
	told := func(l layout.Node) []string {
		t.Helper()
		o, err := runtimeOptions(l, "")
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(o.Args, func(arg string) bool { return !strings.Contains(arg, "kubelet") })
	}
	if got := told(layout.Default()); len(got) > 0 {
		t.Errorf("of the usual one: %q", got)
	}
	want := []string{"--kubelet-dir=/var/lib/hyperkube/nodes/1/kubelet", "--known-kubelet-dir=/var/lib/kubelet"}
	if got := told(layout.Default().Numbered(1)); !slices.Equal(got, want) {
		t.Errorf("of a further node's: %q", got)
	}
}
