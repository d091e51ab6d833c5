package progress

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/internal/host/cgroup"
)

// TestMoveToRootCgroup checks that a background process leaves the cgroup of a session.
func TestMoveToRootCgroup(t *testing.T) {
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
		if err := moveToRootCgroup(groups, 4711); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(root, "cgroup.procs")); err != nil || string(got) != want {
			t.Errorf("%s: moved to the root: %q, want %q (%v)", kind, got, want, err)
		}
	}
}

// TestLastError checks that the last error of the current run is returned, not one of an earlier
// run.
func TestLastError(t *testing.T) {
	const before = "time=1 level=ERROR msg=\"of an earlier run\"\n"
	for name, c := range map[string]struct{ log, want string }{
		"nothing":     {"", ""},
		"no error":    {"time=1 level=INFO msg=fine\n", ""},
		"the last":    {"time=1 level=ERROR msg=first\ntime=2 level=ERROR msg=disk error=\"input/output error\"\ntime=3 level=INFO msg=end\n", "msg=disk error=\"input/output error\""},
		"a panic":     {"time=1 level=ERROR msg=first\npanic: oh\n\ngoroutine 1 [running]:\n level=ERROR \n", "panic: oh"},
		"after a lot": {strings.Repeat("time=1 level=INFO msg=x\n", 10000) + "time=2 level=ERROR msg=last", "msg=last"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(file, []byte(before+c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := lastError(file, int64(len(before))); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	if got := lastError(filepath.Join(t.TempDir(), "none"), 0); got != "" {
		t.Errorf("without a log: %q", got)
	}
}
