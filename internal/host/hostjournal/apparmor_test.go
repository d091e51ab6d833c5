package hostjournal

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRemoveProfile checks that a profile is removed only if it confines no process.
func TestRemoveProfile(t *testing.T) {
	for name, c := range map[string]struct {
		labels  map[string]string // of processes, by PID
		removed string
	}{
		"unused":           {labels: map[string]string{"1": "unconfined\n", "7": "other (enforce)\n"}, removed: "hyperkube-default"},
		"used":             {labels: map[string]string{"1": "unconfined\n", "7": "hyperkube-default (enforce)\n"}},
		"similar name":     {labels: map[string]string{"7": "hyperkube-default-2 (enforce)\n"}, removed: "hyperkube-default"},
		"without AppArmor": {removed: "hyperkube-default"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			remove := filepath.Join(dir, "remove")
			if err := os.WriteFile(remove, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			for pid, label := range c.labels {
				attr := filepath.Join(dir, pid, "attr")
				if err := os.MkdirAll(attr, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(attr, "current"), []byte(label), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := removeProfile("hyperkube-default", remove, dir); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(remove); err != nil || string(got) != c.removed {
				t.Errorf("wrote %q, %v, want %q", got, err, c.removed)
			}
		})
	}
	if err := removeProfile("hyperkube-default", filepath.Join(t.TempDir(), "missing"), t.TempDir()); err != nil {
		t.Errorf("without AppArmor: %v", err)
	}
}
