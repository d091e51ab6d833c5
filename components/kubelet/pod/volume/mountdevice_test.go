package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestMountOfAnotherFileSystem checks that a mount failure because of other content on the device
// is distinguished from other failures, and that other content that can be mounted is not an error.
func TestMountOfAnotherFileSystem(t *testing.T) {
	tools := t.TempDir()
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	tool := func(name, script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(tools, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tool("fsck", "exit 0")
	for _, c := range []struct {
		content, mount string
		fails, other   bool
	}{
		{"echo TYPE=xfs", "exit 32", true, true},
		{"echo PTTYPE=dos", "exit 32", true, true},
		{"echo TYPE=ext4", "exit 32", true, false},
		{"echo TYPE=xfs", "exit 0", false, false},
	} {
		tool("blkid", c.content)
		tool("mount", c.mount)
		err := MountDevice(t.Context(), "/dev/none", t.TempDir(), "ext4", nil, false)
		var other *contentMismatchError
		if (err != nil) != c.fails || errors.As(err, &other) != c.other {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
