package controlplane

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/layout"
)

// TestDryRun: a dry run of init changes nothing and prints everything that init would write, with
// the real paths.
func TestDryRun(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	o := &initOptions{flags: controlPlaneSettings{Port: 6443, NodeName: "m", Advertise: "192.0.2.1"}}
	l := layout.Under(t.TempDir())
	for _, dir := range []string{l.Etc, l.Data, l.Kubelet} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	newNode := func() *controlPlaneNode {
		t.Helper()
		m, err := o.newNode(l, io.Discard, func(string) bool { return false }, false)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	dryRun := func(run func(io.Writer) error) string {
		t.Helper()
		before := readFiles(t, l)
		var out bytes.Buffer
		if err := run(&out); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(readFiles(t, l), before) {
			t.Error("the dry run changed files")
		}
		if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
			t.Errorf("the dry run left %v, %v", left, err)
		}
		if strings.Contains(out.String(), os.Getenv("TMPDIR")) {
			t.Errorf("output contains the temporary directory:\n%s", out.String())
		}
		return out.String()
	}
	first := dryRun(func(out io.Writer) error { return newNode().printDryRun(out, false) })
	for _, want := range []string{
		`Would write file "` + filepath.Join(l.Etc, "pki/ca.key") + `"` + "\n",
		`Would write file "` + filepath.Join(l.Etc, "admin.conf") + `"` + "\n",
		`Would write file "` + filepath.Join(l.StaticPods(), "etcd.yaml") + `" with content:` + "\n\tapiVersion: v1\n",
		"--client-ca-file=" + filepath.Join(l.Etc, "pki/ca.crt"),
		"Would start the node \"m\"", "Would apply ConfigMap kube-system/kubeadm-config:\n", "Would apply the add-ons", "no changes were applied",
	} {
		if !strings.Contains(first, want) {
			t.Errorf("output lacks %q:\n%s", want, first)
		}
	}
	if strings.Contains(first, "PRIVATE KEY") || strings.Contains(first, "token-secret") {
		t.Error("output contains secrets")
	}

	// On an existing control plane node only changed files are printed.
	if err := newNode().prepare(); err != nil {
		t.Fatal(err)
	}
	if second := dryRun(func(out io.Writer) error { return newNode().printDryRun(out, true) }); strings.Contains(second, l.StaticPods()) || strings.Contains(second, "ca.key") || strings.Contains(second, "Would start") {
		t.Errorf("unchanged files are printed:\n%s", second)
	}
	scheduler := filepath.Join(l.StaticPods(), "kube-scheduler.yaml")
	if err := os.WriteFile(scheduler, []byte("of another version"), 0o600); err != nil {
		t.Fatal(err)
	}
	upgraded := dryRun(func(out io.Writer) error {
		return dryRunWrite(out, l, func(l layout.Node) error { m := newNode(); m.layout = l; return m.prepare() }, printUpgrade)
	})
	if !strings.Contains(upgraded, `"`+scheduler+`" with content:`) || strings.Contains(upgraded, "etcd.yaml") {
		t.Errorf("want only the manifest of the scheduler:\n%s", upgraded)
	}
}

// TestDryRunSkipsIrregularFiles: a dry run skips files that are not regular files.
func TestDryRunSkipsIrregularFiles(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	l := layout.Under(t.TempDir())
	for _, dir := range []string{l.Etc, l.Data, filepath.Join(l.Kubelet, "pki")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"broken": "nowhere", "directory": t.TempDir(), "link": file} {
		if err := os.Symlink(to, filepath.Join(l.Etc, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(l.Data, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := newDryRunner(l, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer r.cleanUp()
	if have := readFiles(t, r.staged); len(have) != 1 || string(have["link"]) != "x" {
		t.Errorf("copied files: %q", have)
	}
}
