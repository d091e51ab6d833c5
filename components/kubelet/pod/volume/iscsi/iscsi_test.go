package iscsi

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/internal/testing/testwait"
)

func mustSetUp(t *testing.T, p *Plugin, r volume.PersistentRequest) volume.Result {
	t.Helper()
	result, err := p.SetUpPersistent(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func mustTearDown(t *testing.T, p *Plugin, r volume.PersistentRequest) {
	t.Helper()
	if err := p.TearDown(t.Context(), tearDown(r)); err != nil {
		t.Fatal(err)
	}
}

// nothingLeft checks that no session, mount or file remains.
func (h *host) nothingLeft() {
	h.t.Helper()
	for _, pattern := range []string{h.sys("class/iscsi_session/*"), filepath.Join(h.root, "plugins/kubernetes.io/iscsi/*"), filepath.Join(h.root, "pods/*/*", pluginName, "*")} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			h.t.Errorf("left: %v %v", left, err)
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(h.root))
	if err != nil || len(mounts) != 1 {
		h.t.Errorf("left: %d mounts, %v", len(mounts)-1, err)
	}
}

var loginCalls = []string{
	"-m discoverydb -t sendtargets -p 192.0.2.1:3260 -I default -o new",
	"-m discoverydb -t sendtargets -p 192.0.2.1:3260 -I default --discover",
	"-m node -p 192.0.2.1:3260 -T " + target + " -I default -o update -n node.session.scan -v manual",
	"-m node -p 192.0.2.1:3260 -T " + target + " -I default --login",
	"-m node -p 192.0.2.1:3260 -T " + target + " -I default -o update -n node.startup -v manual",
}

var logoutCalls = []string{
	"-m node -p 192.0.2.1:3260 -T " + target + " -I default --logout",
	"-m node -p 192.0.2.1:3260 -T " + target + " -I default -o delete",
}

// TestDisk checks that pods of one node share a disk, which is formatted, gets the group of the
// pods, is mounted once, and is detached with the last pod.
func TestDisk(t *testing.T) {
	h := newHost(t, 3)
	p := h.plugin()
	first, second := h.request("first", v1.ISCSIPersistentVolumeSource{Lun: 3}), h.request("second", v1.ISCSIPersistentVolumeSource{Lun: 3})
	at := mustSetUp(t, p, first).Path
	if calls := h.calls(); !slices.Equal(calls, loginCalls) {
		t.Errorf("calls:\n%s", strings.Join(calls, "\n"))
	}
	if err := os.WriteFile(filepath.Join(at, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(at)
	if err != nil || info.Sys().(*syscall.Stat_t).Gid != 4321 || info.Mode()&os.ModeSetgid == 0 {
		t.Errorf("wrong group of the volume: %v, %v", info, err)
	}
	if used := p.VolumesInUse(); !slices.Equal(used, []v1.UniqueVolumeName{"kubernetes.io/iscsi/" + portal + ":" + target + ":3"}) {
		t.Errorf("in use: %v", used)
	}
	mustSetUp(t, p, first)
	other := mustSetUp(t, p, second).Path
	if raw, err := os.ReadFile(filepath.Join(other, "file")); err != nil || string(raw) != "x" {
		t.Errorf("the second pod has %q, %v", raw, err)
	}
	mustTearDown(t, p, first)
	if calls := h.calls(); !slices.Equal(calls, []string{""}) {
		t.Errorf("calls while the disk is in use:\n%s", strings.Join(calls, "\n"))
	}
	if _, err := os.Stat(filepath.Join(other, "file")); err != nil {
		t.Error(err)
	}
	mustTearDown(t, p, second)
	mustTearDown(t, p, second)
	if calls := h.calls(); !slices.Equal(calls, logoutCalls) {
		t.Errorf("calls:\n%s", strings.Join(calls, "\n"))
	}
	h.nothingLeft()
	if used := p.VolumesInUse(); len(used) > 0 {
		t.Errorf("in use: %v", used)
	}
	deleted, err := filepath.Glob(h.sys("block/*/device/delete"))
	if err != nil || len(deleted) != 1 {
		t.Fatal(deleted, err)
	}
	if raw, err := os.ReadFile(deleted[0]); err != nil || string(raw) != "1" {
		t.Errorf("the disk was not removed from the kernel: %q, %v", raw, err)
	}
	// The data is kept: the disk is not formatted again.
	if raw, err := os.ReadFile(filepath.Join(mustSetUp(t, h.plugin(), first).Path, "file")); err != nil || string(raw) != "x" {
		t.Errorf("the disk has %q, %v", raw, err)
	}
	mustTearDown(t, h.plugin(), first)
}

// TestHeld checks that a disk that is also mounted elsewhere is not removed from the kernel.
func TestHeld(t *testing.T) {
	h := newHost(t, 0)
	p := h.plugin()
	r := h.request("pod", v1.ISCSIPersistentVolumeSource{})
	at := mustSetUp(t, p, r).Path
	elsewhere := t.TempDir()
	if err := unix.Mount(at, elsewhere, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := p.TearDown(t.Context(), tearDown(r)); err == nil || !strings.Contains(err.Error(), "still in use") {
		t.Errorf("tearing down: %v", err)
	}
	if calls := h.calls(); !slices.Equal(calls, loginCalls) {
		t.Errorf("calls:\n%s", strings.Join(calls, "\n"))
	}
	if used := p.VolumesInUse(); len(used) != 1 {
		t.Errorf("in use: %v", used)
	}
	if err := os.WriteFile(filepath.Join(elsewhere, "late"), nil, 0o600); err != nil {
		t.Error(err)
	}
	if err := unix.Unmount(elsewhere, 0); err != nil {
		t.Fatal(err)
	}
	mustTearDown(t, p, r)
	h.nothingLeft()
}

// TestTargetOfTwoDisks checks that the session is closed with the last disk of the target.
func TestTargetOfTwoDisks(t *testing.T) {
	h := newHost(t, 1, 2)
	p := h.plugin()
	one, two := h.request("pod", v1.ISCSIPersistentVolumeSource{Lun: 1}), h.request("pod", v1.ISCSIPersistentVolumeSource{Lun: 2})
	mustSetUp(t, p, one)
	mustSetUp(t, p, two)
	mustTearDown(t, p, one)
	if calls := h.calls(); !slices.Equal(calls, loginCalls) {
		t.Errorf("calls:\n%s", strings.Join(calls, "\n"))
	}
	mustTearDown(t, p, two)
	h.nothingLeft()
}

// TestKilled checks that a kubelet that starts after another was killed in any state continues its
// work and cleans up.
func TestKilled(t *testing.T) {
	for _, c := range []struct {
		name string
		// leave undoes the steps that the killed kubelet did not reach.
		leave func(h *host, p *Plugin, r volume.PersistentRequest)
	}{
		{"data file only", func(h *host, p *Plugin, r volume.PersistentRequest) {
			_ = unix.Unmount(filepath.Join(r.Dir, mountPoint), 0)
			left, _ := filepath.Glob(filepath.Join(h.root, "plugins/kubernetes.io/iscsi/*"))
			_ = unix.Unmount(left[0], 0)
			d, _ := readDisk(r.Dir)
			_ = logout(h.t.Context(), d, portal, true)
		}},
		{"logged in", func(h *host, p *Plugin, r volume.PersistentRequest) {
			_ = unix.Unmount(filepath.Join(r.Dir, mountPoint), 0)
			left, _ := filepath.Glob(filepath.Join(h.root, "plugins/kubernetes.io/iscsi/*"))
			_ = unix.Unmount(left[0], 0)
		}},
		{"mounted globally", func(h *host, p *Plugin, r volume.PersistentRequest) {
			_ = unix.Unmount(filepath.Join(r.Dir, mountPoint), 0)
		}},
		{"made", func(*host, *Plugin, volume.PersistentRequest) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, 0)
			r := h.request("pod", v1.ISCSIPersistentVolumeSource{})
			for _, goOn := range []bool{true, false} {
				before := h.plugin()
				mustSetUp(t, before, r)
				c.leave(h, before, r)
				p := h.plugin()
				if used := p.VolumesInUse(); len(used) != 1 {
					t.Errorf("in use: %v", used)
				}
				if goOn {
					at := mustSetUp(t, p, r).Path
					if mounted, err := mountinfo.Mounted(at); err != nil || !mounted {
						t.Errorf("%s is not mounted: %v", at, err)
					}
				}
				mustTearDown(t, p, r)
				h.nothingLeft()
			}
		})
	}
}

// TestRebooted checks the state after a reboot: no session exists, but open-iscsi has a record of
// the portal. Without open-iscsi there is nothing to clean up.
func TestRebooted(t *testing.T) {
	h := newHost(t)
	name := "iqn.2001-04.com.example:pod"
	for _, tools := range []bool{true, false} {
		r := h.request("pod", v1.ISCSIPersistentVolumeSource{InitiatorName: &name})
		d, err := newDisk("pv0", &v1.ISCSIVolumeSource{TargetPortal: portal, IQN: target, InitiatorName: &name})
		if err == nil {
			err = volume.SaveData(r.Dir, dataFile, d)
		}
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		if tools {
			want = []string{"-m node -p " + portal + " -T " + target + " -I " + portal + ":pv0 -o delete", "-m iface -I " + portal + ":pv0 -o delete"}
		} else {
			t.Setenv("PATH", "")
			want = []string{""}
		}
		mustTearDown(t, h.plugin(), r)
		if calls := h.calls(); !slices.Equal(calls, want) {
			t.Errorf("calls:\n%s", strings.Join(calls, "\n"))
		}
		h.nothingLeft()
	}
}

// TestSecretsAndInitiator checks that CHAP is configured before it is needed, and that a volume
// with an initiator name has a separate interface.
func TestSecretsAndInitiator(t *testing.T) {
	h := newHost(t, 0)
	p := h.plugin()
	name := "iqn.2001-04.com.example:pod"
	r := h.request("pod", v1.ISCSIPersistentVolumeSource{ISCSIInterface: "hw", InitiatorName: &name, SessionCHAPAuth: true, DiscoveryCHAPAuth: true, SecretRef: &v1.SecretReference{Name: "chap"}})
	mustSetUp(t, p, r)
	mustTearDown(t, p, r)
	face := portal + ":pv0"
	discovery := "-m discoverydb -t sendtargets -p " + portal + " -I " + face + " "
	node := "-m node -p " + portal + " -T " + target + " -I " + face + " "
	want := []string{
		"-m iface -I hw -o show",
		"-m iface -I " + face + " -o new",
		"-m iface -I " + face + " -o update -n iface.hwaddress -v 02:00:00:00:00:01",
		"-m iface -I " + face + " -o update -n iface.initiatorname -v " + name,
		"-m iface -I " + face + " -o update -n iface.transport_name -v tcp",
		discovery + "-o new",
		discovery + "-o update -n discovery.sendtargets.auth.authmethod -v CHAP",
		discovery + "--discover",
		node + "-o update -n node.session.scan -v manual",
		node + "-o update -n node.session.auth.authmethod -v CHAP",
		node + "-o update -n node.session.auth.username -v ns",
		node + "-o update -n node.session.auth.password -v chap",
		node + "--login",
		node + "-o update -n node.startup -v manual",
		node + "--logout",
		node + "-o delete",
		"-m iface -I " + face + " -o delete",
	}
	if calls := h.calls(); !slices.Equal(calls, want) {
		t.Errorf("calls:\n%s", strings.Join(calls, "\n"))
	}
	h.nothingLeft()
}

// TestPortals checks that a disk is attached through the portals that respond, and that the setup
// fails if none does.
func TestPortals(t *testing.T) {
	h := newHost(t, 0)
	p := h.plugin()
	h.write(filepath.Join(h.dir, "bad"), portal+"\n")
	r := h.request("pod", v1.ISCSIPersistentVolumeSource{})
	_, err := p.SetUpPersistent(t.Context(), r)
	var failure *volume.Failure
	if !errors.As(err, &failure) || failure.Operation != "MountVolume.WaitForAttach" || !strings.Contains(err.Error(), "failed to get any path for iscsi disk, last err seen:\niscsi: failed to sendtargets to portal "+portal+" output: cannot make connection") {
		t.Errorf("%v", err)
	}
	mustTearDown(t, p, r)
	h.nothingLeft()
	r = h.request("pod", v1.ISCSIPersistentVolumeSource{Portals: []string{"192.0.2.2"}})
	devices := map[string]string{}
	d, err := newDisk("pv0", &v1.ISCSIVolumeSource{TargetPortal: portal, IQN: target, Portals: []string{"192.0.2.2"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range d.Portals {
		devices[at], err = p.attachThrough(t.Context(), d, at, chap{})
		if (err != nil) != (at == portal) {
			t.Errorf("%s: %q, %v", at, devices[at], err)
		}
	}
	// The session of the portal that responds is closed with the volume.
	if err := volume.SaveData(r.Dir, dataFile, d); err != nil {
		t.Fatal(err)
	}
	mustTearDown(t, p, r)
	h.nothingLeft()
}

// TestBlock checks that a block volume is the disk's device.
func TestBlock(t *testing.T) {
	h := newHost(t, 5)
	p := h.plugin()
	r := h.request("pod", v1.ISCSIPersistentVolumeSource{Lun: 5})
	result, err := p.SetUpBlock(t.Context(), r)
	if err != nil || !strings.HasPrefix(result.Device, "/dev/loop") || result.Path != "" {
		t.Fatalf("%+v, %v", result, err)
	}
	if again, err := h.plugin().SetUpBlock(t.Context(), r); err != nil || again.Device != result.Device {
		t.Errorf("%+v, %v", again, err)
	}
	mustTearDown(t, p, r)
	h.nothingLeft()
}

// TestGiven checks that a disk is not accessed before the Node reports it as attached, and that a
// pod that is deleted during this wait leaves nothing in use.
func TestGiven(t *testing.T) {
	for name, setUp := range map[string]func(*Plugin, context.Context, volume.PersistentRequest) error{
		"persistent volume": func(p *Plugin, ctx context.Context, r volume.PersistentRequest) error {
			_, err := p.SetUpPersistent(ctx, r)
			return err
		},
		"inline volume": func(p *Plugin, ctx context.Context, r volume.PersistentRequest) error {
			src := v1.ISCSIVolumeSource{TargetPortal: portal, IQN: target}
			_, err := p.SetUp(ctx, volume.Request{Pod: r.Pod, Volume: &v1.Volume{Name: r.PV.Name, VolumeSource: v1.VolumeSource{ISCSI: &src}}, Dir: r.Dir})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { given(t, setUp) })
	}
}

func given(t *testing.T, setUp func(*Plugin, context.Context, volume.PersistentRequest) error) {
	h := newHost(t, 0)
	p := h.plugin()
	var node atomic.Pointer[v1.Node]
	p.cfg.Node = node.Load
	r := h.request("pod", v1.ISCSIPersistentVolumeSource{})
	ended := make(chan error, 1)
	go func() {
		ended <- setUp(p, t.Context(), r)
	}()
	testwait.Until(t, "the volume to be in use", func() bool { return len(p.VolumesInUse()) == 1 })
	n := &v1.Node{}
	n.Status.VolumesAttached = []v1.AttachedVolume{{Name: p.VolumesInUse()[0]}}
	node.Store(n)
	p.Observe()
	select {
	case err := <-ended:
		t.Fatalf("did not wait until the status reports the volume as in use: %v", err)
	default:
	}
	if calls := h.calls(); !slices.Equal(calls, []string{""}) {
		t.Errorf("calls:\n%s", strings.Join(calls, "\n"))
	}
	n = n.DeepCopy()
	n.Status.VolumesInUse = p.VolumesInUse()
	node.Store(n)
	p.Observe()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	mustTearDown(t, p, r)
	node.Store(nil)
	short, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- setUp(p, short, r)
	}()
	testwait.Until(t, "the volume to be in use", func() bool { return len(p.VolumesInUse()) == 1 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	mustTearDown(t, p, r)
	if used := p.VolumesInUse(); len(used) > 0 {
		t.Errorf("in use: %v", used)
	}
	h.nothingLeft()
}

// TestMultipath checks that the multipath device of a disk with several paths is used, and that
// other device-mapper devices on the disk are not.
func TestMultipath(t *testing.T) {
	h := newHost(t)
	for dm, uuid := range map[string]string{"dm-0": "LVM-abc", "dm-1": "mpath-36001405"} {
		h.make(h.sys("block/" + dm + "/dm"))
		h.make(h.sys("block/" + dm + "/slaves/sdb"))
		h.write(h.sys("block/"+dm+"/dm/uuid"), uuid+"\n")
	}
	if m := h.plugin().kernel.multipath("sdb"); m != "dm-1" {
		t.Errorf("%q", m)
	}
	if m := h.plugin().kernel.multipath("sdc"); m != "" {
		t.Errorf("%q", m)
	}
}

func TestPorts(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1": "10.0.0.1:3260", "10.0.0.1:3261": "10.0.0.1:3261", "storage": "storage:3260", "[fd00::1]": "[fd00::1]:3260", "[fd00::1]:3261": "[fd00::1]:3261",
	} {
		if got := withPort(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

// TestOpenISCSI uses the machine's open-iscsi and kernel and the target in HYPERKUBE_TEST_ISCSI
// (PORTAL,IQN,LUN), whose disk is overwritten.
func TestOpenISCSI(t *testing.T) {
	parts := strings.Split(os.Getenv("HYPERKUBE_TEST_ISCSI"), ",")
	if len(parts) != 3 {
		t.Skip("HYPERKUBE_TEST_ISCSI is not set")
	}
	lun, err := strconv.Atoi(parts[2])
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, dir: t.TempDir(), root: t.TempDir()}
	p := New(Config{Root: h.root, Log: slog.New(slog.DiscardHandler)})
	name := "iqn.2001-04.com.example:initiator"
	for _, initiator := range []*string{nil, &name} {
		r := h.request("pod", v1.ISCSIPersistentVolumeSource{Lun: int32(lun), InitiatorName: initiator})
		r.PV.Spec.ISCSI.TargetPortal, r.PV.Spec.ISCSI.IQN = parts[0], parts[1]
		for round := range 2 {
			file := filepath.Join(mustSetUp(t, p, r).Path, "file")
			if raw, err := os.ReadFile(file); (err == nil) != (round == 1 || initiator != nil) || err == nil && string(raw) != "x" {
				t.Errorf("round %d: %q, %v", round, raw, err)
			}
			if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			mustTearDown(t, p, r)
			if left, err := p.kernel.sessions(parts[1], "default"); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		}
		block, err := p.SetUpBlock(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(block.Device); err != nil || info.Mode()&os.ModeDevice == 0 {
			t.Errorf("%s: %v", block.Device, err)
		}
		mustTearDown(t, p, r)
		if _, err := os.Stat(block.Device); !isNotExist(err) {
			t.Errorf("%s remains: %v", block.Device, err)
		}
	}
}
