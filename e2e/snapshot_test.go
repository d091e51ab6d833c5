package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestSnapshot saves a snapshot of a cluster, changes the cluster, and restores the former state.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	a := newAlone(t)
	root, file := filepath.Join(a.dir, "r"), filepath.Join(a.dir, "one.db")
	a.hyperkube("up", "--root", root)
	t.Cleanup(func() { a.hyperkube("reset", "--root", root) })
	a.hyperkube("kubectl", "create", "secret", "generic", "before", "--from-literal=a=b")
	if out := a.hyperkube("snapshot", "save", file, "--root", root); !strings.Contains(out, "encryption.yaml") {
		t.Errorf("save does not mention the encryption key:\n%s", out)
	}
	if out := a.hyperkube("snapshot", "status", file, "-o", "json"); !strings.Contains(out, `"revision":`) {
		t.Errorf("status: %s", out)
	}
	a.hyperkube("kubectl", "create", "configmap", "after")
	if out, err := a.command(a.binary, "snapshot", "restore", file, "--root", root).CombinedOutput(); err == nil || !strings.Contains(string(out), "is running") {
		t.Errorf("restored while the cluster was running: %v\n%s", err, out)
	}
	a.hyperkube("stop", "--root", root)
	a.hyperkube("snapshot", "restore", file, "--root", root)
	a.hyperkube("up", "--root", root)
	got := a.hyperkube("kubectl", "get", "secrets,configmaps", "-o", "name")
	if !strings.Contains(got, "secret/before") || strings.Contains(got, "configmap/after") {
		t.Errorf("objects after the restore:\n%s", got)
	}
	if data := a.hyperkube("kubectl", "get", "secret", "before", "-o", "jsonpath={.data.a}"); data != "Yg==" {
		t.Errorf("the secret has %q", data)
	}
}
