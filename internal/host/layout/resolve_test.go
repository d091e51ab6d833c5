package layout

import (
	"os"
	"path/filepath"
	"testing"
)

func TestResolve(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "disk", "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("disk", filepath.Join(dir, "var")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"disk/lib": "disk/lib", "var": "disk", "var/lib": "disk/lib", "var/lib/none/there": "disk/lib/none/there", "none": "none", "loop/x": "",
	} {
		got, err := Resolve(filepath.Join(dir, path))
		if want == "" {
			if err == nil {
				t.Errorf("%s is %s", path, got)
			}
			continue
		}
		if err != nil || got != filepath.Join(dir, want) {
			t.Errorf("%s is %s (%v), want %s", path, got, err, want)
		}
	}
}
