package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/internal/cgroup"
)

// TestOutlive: what runs in the background is not in the cgroup of a session that
// may be ended with all in it.
func TestOutlive(t *testing.T) {
	for kind, want := range map[string]string{"cgroup2": "4711", "cgroup": ""} {
		root := t.TempDir()
		for _, file := range []string{"cgroup.controllers", "cgroup.procs"} {
			if err := os.WriteFile(filepath.Join(root, file), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		groups, err := cgroup.OpenTable(strings.NewReader("30 25 0:26 / " + root + " rw - " + kind + " cgroup rw,memory\n"))
		if err != nil {
			t.Fatal(err)
		}
		if err := outlive(groups, 4711); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(root, "cgroup.procs")); err != nil || string(got) != want {
			t.Errorf("%s: moved to the root: %q, want %q (%v)", kind, got, want, err)
		}
	}
}
