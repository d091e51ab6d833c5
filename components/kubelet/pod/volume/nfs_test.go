package volume

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestNFS checks the arguments of the host's mount program, and that the directory is removed after
// a failed mount.
func TestNFS(t *testing.T) {
	tools := t.TempDir()
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	asked := filepath.Join(tools, "asked")
	tool := func(exit string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(tools, "mount"), []byte("#!/bin/sh\necho \"$*\" >> "+asked+"\necho no such server\nexit "+exit+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "v")
	pv := &v1.PersistentVolume{}
	pv.Spec.NFS, pv.Spec.MountOptions = &v1.NFSVolumeSource{Server: "fd00::1", Path: "/b", ReadOnly: true}, []string{"nfsvers=4.1", "hard"}
	inline := Request{Dir: dir, Volume: &v1.Volume{VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "server", Path: "/a"}}}}
	tool("0")
	if r, err := (NFS{}).SetUp(t.Context(), inline); err != nil || r.Path != dir || r.ReadOnly {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := (NFS{}).SetUpPersistent(t.Context(), PersistentRequest{PV: pv, Dir: dir}); err != nil || !r.ReadOnly {
		t.Errorf("%+v, %v", r, err)
	}
	tool("32")
	_, err := NFS{}.SetUp(t.Context(), inline)
	if want := "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs server:/a " + dir + "\nOutput: no such server\n"; err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory remains: %v", err)
	}
	want := "-t nfs server:/a " + dir + "\n-t nfs -o ro,nfsvers=4.1,hard [fd00::1]:/b " + dir + "\n-t nfs server:/a " + dir + "\n"
	if got := read(t, asked); got != want {
		t.Errorf("mount arguments\n%s", got)
	}
}
