package scrub

import (
	"os"
	"path/filepath"
	"testing"
)

func TestScrub(t *testing.T) {
	outside := t.TempDir()
	precious := filepath.Join(outside, "precious")
	if err := os.WriteFile(precious, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	fill := func() {
		for _, d := range []string{"a/b/c", ".hidden"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, l := range []string{"link", "a/link"} {
			if err := os.Symlink(outside, filepath.Join(dir, l)); err != nil {
				t.Fatal(err)
			}
		}
	}
	names := func() int {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	fill()
	for _, bad := range []string{"..", "../" + filepath.Base(outside), "link/precious", ".", ""} {
		if err := removeEntry(dir, bad); err == nil {
			t.Errorf("%q was removed", bad)
		}
	}
	for i := range 2 {
		if err := removeEntry(dir, "a"); err != nil || names() != 2 {
			t.Errorf("round %d: %v, %d left", i, err, names())
		}
	}
	if err := os.RemoveAll(filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	fill()
	if err := removeAll(dir); err != nil || names() != 0 {
		t.Errorf("%v, %d left", err, names())
	}
	if err := removeEntry(filepath.Join(dir, "absent"), "a"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}
