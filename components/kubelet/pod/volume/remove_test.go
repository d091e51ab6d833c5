package volume

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRemoveTree checks that the content of a mount below a pod's directory is not removed, and
// that symbolic links are not followed.
func TestRemoveTree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	root := t.TempDir()
	precious, pod := filepath.Join(root, "precious"), filepath.Join(root, "pod")
	at := filepath.Join(pod, "a", "b", "mounted")
	for _, d := range []string{filepath.Join(precious, "sub"), at} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(precious, "sub", "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, filepath.Join(pod, "link")); err != nil {
		t.Fatal(err)
	}
	// A bind mount of the same file system has the same device number.
	if err := unix.Mount(precious, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	err := removeTree(pod)
	mustUnmount := unix.Unmount(at, 0)
	if err == nil {
		t.Error("removed although something was mounted")
	}
	if mustUnmount != nil {
		t.Error(mustUnmount)
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatal("other data was deleted: ", err)
	}
	if err := removeTree(pod); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(pod); !os.IsNotExist(err) {
		t.Errorf("still exists: %v", err)
	}
	if err := removeTree(pod); err != nil {
		t.Errorf("again: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error("other data was deleted through a link: ", err)
	}
}
