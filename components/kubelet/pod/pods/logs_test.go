package pods

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestClearLogs(t *testing.T) {
	dir := t.TempDir()
	h := newHost(Config{Log: slog.New(slog.DiscardHandler), Logs: Logs{Pods: filepath.Join(dir, "pods"), Containers: filepath.Join(dir, "containers")}})
	h.Registry.add(newWorker(h, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "here"}}))
	garbage := NewGarbageCollector(h.Registry, h.Logs, DeadContainers{})
	for _, name := range []string{"pods/a_b_here/c", "pods/a_b_gone/c", "pods/other", "containers"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"kept.log": filepath.Join(h.Logs.Pods, "a_b_here"), "dead.log": filepath.Join(h.Logs.Pods, "a_b_gone/c/0.log"), "foreign.log": "/nowhere/at/all",
	} {
		if err := os.Symlink(to, filepath.Join(h.Logs.Containers, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := garbage.RemoveOrphanedLogs(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"pods/a_b_here/c": true, "pods/a_b_gone": false, "pods/other": true,
		"containers/kept.log": true, "containers/dead.log": false, "containers/foreign.log": true,
	} {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
