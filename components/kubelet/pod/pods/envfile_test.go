package pods

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/volume"
)

func TestFileKey(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("A='x'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/os-release", filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	volumes := map[string]volume.Result{"v": {Path: dir}}
	for _, tc := range []struct {
		ref   v1.FileKeySelector
		value string
		found bool
		err   string
	}{
		{v1.FileKeySelector{VolumeName: "v", Path: "file", Key: "A"}, "x", true, ""},
		{v1.FileKeySelector{VolumeName: "v", Path: "file", Key: "B"}, "", false, ""},
		{v1.FileKeySelector{VolumeName: "v", Path: "//file", Key: "A"}, "x", true, ""},
		{v1.FileKeySelector{VolumeName: "v", Path: "out", Key: "A"}, "", false, "couldn't parse env file"},
		{v1.FileKeySelector{VolumeName: "v", Path: "pipe", Key: "A"}, "", false, "couldn't parse env file"},
		{v1.FileKeySelector{VolumeName: "v", Path: "none", Key: "A"}, "", false, "couldn't parse env file"},
		{v1.FileKeySelector{VolumeName: "w", Path: "file", Key: "A"}, "", false, `cannot find the volume "w" referenced by FileKeyRef`},
	} {
		value, found, err := fileKey(volumes, &tc.ref)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if value != tc.value || found != tc.found || text != tc.err {
			t.Errorf("%+v: %q %v %q", tc.ref, value, found, text)
		}
	}
}
