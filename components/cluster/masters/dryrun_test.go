package masters

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hyperkube/internal/layout"
)

// TestDryRun: a dry run of init changes nothing, and tells all that init would write, by
// the places where it would be.
func TestDryRun(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	o := &initOptions{given: masterSettings{Port: 6443, NodeName: "m", Advertise: "192.0.2.1"}}
	l := layout.Under(t.TempDir())
	for _, dir := range []string{l.Etc, l.Data, l.Kubelet} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	again := func() *master {
		t.Helper()
		m, err := o.again(l, io.Discard, func(string) bool { return false }, false)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	said := func(rehearse func(io.Writer) error) string {
		t.Helper()
		before := filesOf(t, l)
		var out bytes.Buffer
		if err := rehearse(&out); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(filesOf(t, l), before) {
			t.Error("a dry run has changed files")
		}
		if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
			t.Errorf("a dry run leaves %v, %v", left, err)
		}
		if strings.Contains(out.String(), os.Getenv("TMPDIR")) {
			t.Errorf("it tells of its own folder:\n%s", out.String())
		}
		return out.String()
	}
	first := said(func(out io.Writer) error { return again().rehearse(out, false) })
	for _, want := range []string{
		`Would write file "` + filepath.Join(l.Etc, "pki/ca.key") + `"` + "\n",
		`Would write file "` + filepath.Join(l.Etc, "admin.conf") + `"` + "\n",
		`Would write file "` + filepath.Join(l.StaticPods(), "etcd.yaml") + `" with content:` + "\n\tapiVersion: v1\n",
		"--client-ca-file=" + filepath.Join(l.Etc, "pki/ca.crt"),
		"Would start the node \"m\"", "Would apply ConfigMap kube-system/kubeadm-config:\n", "Would apply the add-ons", "Nothing was changed",
	} {
		if !strings.Contains(first, want) {
			t.Errorf("it does not say %q:\n%s", want, first)
		}
	}
	if strings.Contains(first, "PRIVATE KEY") || strings.Contains(first, "token-secret") {
		t.Error("it tells secrets")
	}

	// Where there is a master already only what becomes another is told.
	if err := again().prepare(); err != nil {
		t.Fatal(err)
	}
	if second := said(func(out io.Writer) error { return again().rehearse(out, true) }); strings.Contains(second, l.StaticPods()) || strings.Contains(second, "ca.key") || strings.Contains(second, "Would start") {
		t.Errorf("what is there already would be written:\n%s", second)
	}
	scheduler := filepath.Join(l.StaticPods(), "kube-scheduler.yaml")
	if err := os.WriteFile(scheduler, []byte("of another version"), 0o600); err != nil {
		t.Fatal(err)
	}
	upgraded := said(func(out io.Writer) error {
		return rehearseWrite(out, l, func(l layout.Node) error { m := again(); m.layout = l; return m.prepare() }, tellUpgrade)
	})
	if !strings.Contains(upgraded, `"`+scheduler+`" with content:`) || strings.Contains(upgraded, "etcd.yaml") {
		t.Errorf("of the manifests only that of the scheduler is another:\n%s", upgraded)
	}
}

// TestDryRunBesideOthers: what is no file is no hindrance to a dry run, nor is what
// others keep where it looks.
func TestDryRunBesideOthers(t *testing.T) {
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
	for name, to := range map[string]string{"broken": "nowhere", "folder": t.TempDir(), "link": file} {
		if err := os.Symlink(to, filepath.Join(l.Etc, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(l.Data, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := rehearse(l, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer r.end()
	if have := filesOf(t, r.played); len(have) != 1 || string(have["link"]) != "x" {
		t.Errorf("it begins with %q", have)
	}
}
