package iscsi

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/pod/volume"
)

const (
	target = "iqn.2001-04.com.example:disks"
	portal = "192.0.2.1:3260"
)

// fakeIscsiadm is a fake of open-iscsi's program iscsiadm: it records its arguments, and creates and deletes
// sessions as the kernel presents them in sysfs. Portals that are listed in the file bad do not respond.
const fakeIscsiadm = `#!/bin/bash
echo "$*" >> $STATE/calls
portal= target= face=
args=("$@")
for ((i = 0; i < ${#args[@]}; i++)); do
  case ${args[i]} in -p) portal=${args[i+1]};; -T) target=${args[i+1]};; -I) face=${args[i+1]};; esac
done
name=session-$(echo "$portal $target $face" | cksum | cut -d' ' -f1)
dir=$STATE/sys/devices/platform/host7/$name
link=$STATE/sys/class/iscsi_session/$name
case "$*" in
*--discover) grep -qxF "$portal" $STATE/bad && { echo cannot make connection; exit 4; };;
*--login)
  mkdir -p $dir/connection1:0/iscsi_connection/connection1:0 $link
  ln -s $dir $link/device
  echo "$target" > $link/targetname
  echo "$face" > $link/ifacename
  cd $dir/connection1:0/iscsi_connection/connection1:0
  echo "${portal%:*}" > address; echo "${portal##*:}" > port
  cp address persistent_address; cp port persistent_port;;
*--logout) [ -e $link ] || exit 21; rm -r $dir $link;;
*"-m iface"*"-o show") printf '# BEGIN\niface.iscsi_ifacename = hw\niface.hwaddress = 02:00:00:00:00:01\niface.ipaddress = <empty>\niface.transport_name = tcp\n';;
esac
exit 0
`

// host is a machine with open-iscsi whose disks are files.
type host struct {
	t    *testing.T
	dir  string
	root string
}

// newHost creates a machine whose target has unformatted disks with the given LUNs. Without root or the
// required programs it skips the test.
func newHost(t *testing.T, luns ...int) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	for _, tool := range []string{"bash", "losetup", "mkfs.ext4", "blkid"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	h := &host{t: t, dir: t.TempDir(), root: t.TempDir()}
	tools := t.TempDir()
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	t.Setenv("STATE", h.dir)
	h.write(filepath.Join(tools, "iscsiadm"), fakeIscsiadm)
	for _, name := range []string{"calls", "bad"} {
		h.write(filepath.Join(h.dir, name), "")
	}
	for _, dir := range []string{"class/iscsi_session", "class/scsi_host/host7", "devices/platform/host7", "block"} {
		h.make(h.sys(dir))
	}
	devices := map[int]string{}
	for _, lun := range luns {
		devices[lun] = h.loop()
	}
	scan := h.sys("class/scsi_host/host7/scan")
	if err := unix.Mkfifo(scan, 0o600); err != nil {
		t.Fatal(err)
	}
	go h.kernel(scan, devices)
	t.Cleanup(func() {
		// The reader may be about to open the file.
		f, err := os.OpenFile(scan, os.O_RDWR, 0)
		if err == nil {
			_, err = f.WriteString("end")
			defer f.Close()
		}
		if err != nil {
			t.Error(err)
		}
		_ = unix.Unmount(h.root, unix.MNT_DETACH)
	})
	// Mounts below it are removed with it when a test fails.
	if err := unix.Mount("tmpfs", h.root, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) sys(path string) string { return filepath.Join(h.dir, "sys", path) }

func (h *host) make(dir string) {
	h.t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) write(path, content string) {
	h.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		h.t.Fatal(err)
	}
}

// loop creates a loop device and returns its name.
func (h *host) loop() string {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), "disk")
	h.write(file, "")
	if err := os.Truncate(file, 16<<20); err != nil {
		h.t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", file).Output()
	if err != nil {
		h.t.Skip("no loop devices:", err)
	}
	path := strings.TrimSpace(string(out))
	h.t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", path).CombinedOutput(); err != nil {
			h.t.Errorf("%v: %s", err, out)
		}
	})
	name := filepath.Base(path)
	h.make(h.sys("block/" + name + "/device"))
	h.write(h.sys("block/"+name+"/device/delete"), "")
	return name
}

// kernel simulates the kernel's scan for disks.
func (h *host) kernel(scan string, devices map[int]string) {
	for {
		raw, err := os.ReadFile(scan)
		if err != nil || string(raw) == "end" {
			return
		}
		var lun int
		if _, err := fmt.Sscanf(string(raw), "0 0 %d", &lun); err != nil || devices[lun] == "" {
			continue
		}
		sessions, _ := filepath.Glob(h.sys("devices/platform/host7/session*"))
		for _, s := range sessions {
			_ = os.MkdirAll(filepath.Join(s, "target7:0:0", fmt.Sprintf("7:0:0:%d", lun), "block", devices[lun]), 0o755)
		}
	}
}

// plugin returns the plugin of a new kubelet.
func (h *host) plugin() *Plugin {
	p := New(Config{Root: h.root, Sys: filepath.Join(h.dir, "sys"), Log: slog.New(slog.DiscardHandler), Secret: func(_ context.Context, namespace, name string) (*v1.Secret, error) {
		return &v1.Secret{Data: map[string][]byte{"node.session.auth.username": []byte(namespace), "node.session.auth.password": []byte(name), "other": []byte("x")}}, nil
	}})
	p.deviceTimeout, p.freeTimeout = time.Minute, 0
	return p
}

// calls returns the calls of iscsiadm since the last call of this function.
func (h *host) calls() []string {
	h.t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.dir, "calls"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.write(filepath.Join(h.dir, "calls"), "")
	return strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
}

// request returns a pod's request for a disk.
func (h *host) request(pod string, src v1.ISCSIPersistentVolumeSource) volume.PersistentRequest {
	h.t.Helper()
	src.TargetPortal, src.IQN = portal, target
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Name = fmt.Sprint("pv", src.Lun)
	pv.Spec.ISCSI = &src
	dir := filepath.Join(h.root, "pods", pod, "volumes", pluginName)
	h.make(dir)
	group := int64(4321)
	return volume.PersistentRequest{
		Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: "ns", UID: types.UID(pod)}, Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{FSGroup: &group}}},
		PV:  pv, Dir: filepath.Join(dir, pv.Name),
	}
}

func tearDown(r volume.PersistentRequest) volume.TearDownRequest {
	return volume.TearDownRequest{UID: r.Pod.UID, Dir: r.Dir}
}
