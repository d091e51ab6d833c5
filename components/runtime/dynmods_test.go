//go:build cgo

package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/internal/host/cgroup"
)

// TestFavorsDynamicCgroups checks that no additional hierarchy is created with cgroup v2, because
// all processes would show it.
func TestFavorsDynamicCgroups(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpuset cpu io memory pids\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unified := "30 24 0:26 / " + dir + " rw - cgroup2 cgroup2 rw,nsdelegate\n"
	former := "31 24 0:27 / " + dir + "/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
	for name, test := range map[string]struct {
		table string
		slow  bool
		want  bool
	}{
		"version 1":           {table: former, want: true},
		"version 1, slow":     {table: former, slow: true},
		"both":                {table: unified + former, want: true},
		"version 2 alone":     {table: unified},
		"version 2, slow too": {table: unified, slow: true},
	} {
		t.Run(name, func(t *testing.T) {
			groups, err := cgroup.OpenTable(strings.NewReader(test.table))
			if err != nil {
				t.Fatal(err)
			}
			if got := favorsDynamicCgroups(groups, test.slow); got != test.want {
				t.Errorf("favorsDynamicCgroups() = %v, want %v", got, test.want)
			}
		})
	}
}
