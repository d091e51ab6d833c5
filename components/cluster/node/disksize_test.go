package node

import (
	"path/filepath"
	"testing"
)

// TestDiskSize checks that a directory that does not exist yet has the size of the file system of its parent.
func TestDiskSize(t *testing.T) {
	dir := t.TempDir()
	size := diskSize(dir)
	if missing := diskSize(filepath.Join(dir, "a", "b")); size <= 0 || missing != size {
		t.Errorf("size of a directory is %d, of a missing one in it %d", size, missing)
	}
	if got := diskSize("/proc/version/file"); got != 0 {
		t.Errorf("size of a path in a file is %d, want 0", got)
	}
}
