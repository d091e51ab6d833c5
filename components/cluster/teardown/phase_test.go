package teardown

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
)

// TestDryRun checks that a dry run of reset prints what would be deleted, and deletes nothing.
func TestDryRun(t *testing.T) {
	l := layout.Under(t.TempDir())
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "kubeconfig"))
	made := filepath.Join(t.TempDir(), "made")
	j, err := hostjournal.Open(l.Journal("runtime"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Record(hostjournal.Change{Kind: hostjournal.Dir, Name: made}), j.Close()); err != nil {
		t.Fatal(err)
	}
	keep := []string{made, filepath.Join(l.Etc, "pki"), l.Kubelet, l.Run}
	for _, dir := range keep {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	joined := filepath.Join(l.Data, "node.json")
	if err := os.WriteFile(joined, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printDryRun(&out, l); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Would revert: dir " + made + "\n", "Would delete " + filepath.Join(l.Etc, "pki") + "\n", "Would delete " + l.Data + "\n", "Would delete " + l.Kubelet + "\n",
		"Would remove the context hyperkube", "Nothing was changed",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), l.PodLogs) || strings.Contains(out.String(), "Would stop") {
		t.Errorf("unexpected lines:\n%s", out.String())
	}
	for _, path := range append(keep, joined, l.Journal("runtime")) {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// TestPhases checks that the phases of reset have kubeadm's names.
func TestPhases(t *testing.T) {
	for _, name := range []string{"preflight", "remove-etcd-member", "cleanup-node"} {
		if cmd, rest, err := NewReset().Find([]string{"phase", name}); err != nil || cmd.Name() != name || len(rest) > 0 {
			t.Errorf("phase %s: %v, %v", name, cmd.Name(), err)
		}
	}
}

// TestKubeadmFlags checks that reset accepts the flags that scripts for kubeadm use.
func TestKubeadmFlags(t *testing.T) {
	for _, path := range [][]string{nil, {"phase", "preflight"}} {
		cmd, _, err := NewReset().Find(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.ParseFlags([]string{"--ignore-preflight-errors=all"}); err != nil {
			t.Errorf("reset %v: %v", path, err)
		}
	}
}
