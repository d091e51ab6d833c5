package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
)

// TestConfigFileArgs checks that a cluster with --root uses the machine's configuration files except
// for those in its root directory, and that its additional nodes do the same.
func TestConfigFileArgs(t *testing.T) {
	root := t.TempDir()
	l := layout.Under(root)
	if got := configFileArgs(l); len(got) > 0 {
		t.Errorf("without files: %q", got)
	}
	file := filepath.Join(root, "etc/hyperkube/registries.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range []layout.Node{l, l.Numbered(2)} {
		o, err := runtimeOptions(n, "", packetfilter.NFTables)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(o.Args, "--registry-config="+file) {
			t.Errorf("file of the cluster is not passed: %q", o.Args)
		}
		if !slices.Contains(o.Args, "--proxy-mode=nftables") {
			t.Errorf("the mode of the packet filter is not passed: %q", o.Args)
		}
	}
	if got := configFileArgs(layout.Default()); len(got) > 0 {
		t.Errorf("with the default layout: %q", got)
	}
}

// TestKubeletDirFlags checks that the runtime gets the kubelet directory under the path by
// which drivers in pods know it, because that path describes devices.
func TestKubeletDirFlags(t *testing.T) {
	kubeletFlags := func(l layout.Node) []string {
		t.Helper()
		o, err := runtimeOptions(l, "", packetfilter.NFTables)
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(o.Args, func(arg string) bool { return !strings.Contains(arg, "kubelet") })
	}
	if got := kubeletFlags(layout.Default()); len(got) > 0 {
		t.Errorf("with the default layout: %q", got)
	}
	want := []string{"--kubelet-dir=/var/lib/hyperkube/nodes/1/kubelet", "--known-kubelet-dir=/var/lib/kubelet"}
	if got := kubeletFlags(layout.Default().Numbered(1)); !slices.Equal(got, want) {
		t.Errorf("of an additional node: %q", got)
	}
}
