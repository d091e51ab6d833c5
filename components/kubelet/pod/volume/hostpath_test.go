package volume

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/host/layout"
)

// TestHostPathAlias checks that a pod that mounts the usual path of the kubelet's root directory
// gets that of its node.
func TestHostPathAlias(t *testing.T) {
	own := t.TempDir()
	paths := HostPath{Aliases: []layout.Alias{{}, {Advertised: "/known/kubelet", Actual: own}}}
	kind := v1.HostPathDirectoryOrCreate
	for path, want := range map[string]string{
		"/known/kubelet/plugins/d": filepath.Join(own, "plugins/d"),
		"/known/kubelet":           own,
		t.TempDir():                "",
	} {
		if want == "" {
			want = path
		}
		r, err := paths.SetUp(t.Context(), Request{Volume: &v1.Volume{VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}}}})
		if err != nil || r.Path != want {
			t.Errorf("%s is %s %v, want %s", path, r.Path, err, want)
		}
		if info, err := os.Stat(want); err != nil || !info.IsDir() {
			t.Errorf("%s was not created: %v", want, err)
		}
	}
}

// TestHostPathTypes checks that a path must have the expected type or is created with it, and that
// the error for a mismatch contains the actual type.
func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := unix.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(path string, kind v1.HostPathType, failed string) {
		t.Helper()
		said := ""
		if err := checkHostPath(path, kind); err != nil {
			said = err.Error()
		}
		if said != failed {
			t.Errorf("%s as %q: %q, want %q", path, kind, said, failed)
		}
	}
	for name, kind := range map[string]v1.HostPathType{
		dir: v1.HostPathDirectory, at("file"): v1.HostPathFile, at("socket"): v1.HostPathSocket, "/dev/null": v1.HostPathCharDev, at("not there"): v1.HostPathUnset,
	} {
		check(name, kind, "")
	}
	check(dir, v1.HostPathDirectoryOrCreate, "")
	check(at("file"), v1.HostPathFileOrCreate, "")
	for kind, name := range map[v1.HostPathType]string{v1.HostPathDirectory: "directory", v1.HostPathDirectoryOrCreate: "directory", v1.HostPathSocket: "socket file", v1.HostPathCharDev: "character device", v1.HostPathBlockDev: "block device"} {
		check(at("file"), kind, "hostPath type check failed: "+at("file")+" is not a "+name+", it's a File")
	}
	for kind, name := range map[v1.HostPathType]string{v1.HostPathFile: "file", v1.HostPathFileOrCreate: "file"} {
		check(dir, kind, "hostPath type check failed: "+dir+" is not a "+name+", it's a Directory")
		check("/dev/null", kind, "hostPath type check failed: /dev/null is not a "+name+", it's a CharDevice")
		check(at("pipe"), kind, "hostPath type check failed, "+at("pipe")+" is not a "+name+", unable to determine its type: only recognise file, directory, socket, block device and character device")
	}
	for kind, name := range map[v1.HostPathType]string{v1.HostPathDirectory: "directory", v1.HostPathFile: "file", v1.HostPathSocket: "socket file", v1.HostPathCharDev: "character device", v1.HostPathBlockDev: "block device"} {
		check(at("none"), kind, "hostPath type check failed, "+at("none")+" is not a "+name+", unable to determine its type: path \""+at("none")+"\" does not exist")
	}
	check(dir, "Volume", "Volume is an invalid volume type")
	check(at("new/dir"), v1.HostPathDirectoryOrCreate, "")
	check(at("new/file"), v1.HostPathFileOrCreate, "")
	check(at("new/dir"), v1.HostPathDirectory, "")
	check(at("new/file"), v1.HostPathFile, "")
}
