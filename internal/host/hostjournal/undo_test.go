package hostjournal

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/testing/testisolate"
)

// TestMain runs tests of root in separate namespaces.
func TestMain(m *testing.M) { testisolate.Main(m, testisolate.Mounts|testisolate.Network) }

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestUndoAll(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to change the host")
	}
	dir := t.TempDir()
	mounts := filepath.Join(dir, "mounts")
	made := filepath.Join(dir, "made", "dir")
	group := fmt.Sprintf("/hyperkube-undo-test-%d", os.Getpid())
	path := filepath.Join(dir, "journal")
	j, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if err := j.Record(
		Change{Kind: Dir, Name: made},
		Change{Kind: Link, Name: "hk-br0"}, Change{Kind: Link, Name: "hkv*"},
		Change{Kind: Sysctl, Name: "net/ipv4/ip_forward", Before: "0"},
		Change{Kind: Route, Name: "10.77.0.0/16", Before: "lo"},
		Change{Kind: Chain, Name: "4 nat HK-A"}, Change{Kind: Chain, Name: "4 nat HK-B"}, Change{Kind: Chain, Name: "4 nat HK-NEVER-MADE"},
		Change{Kind: Rule, Name: "4 nat POSTROUTING", Args: []string{"-m", "comment", "--comment", "a b", "-j", "HK-A"}},
		Change{Kind: Rule, Name: "4 nat HK-GONE", Args: []string{"-j", "ACCEPT"}},
		Change{Kind: Mount, Name: mounts},
		Change{Kind: Cgroup, Name: group},
	); err != nil {
		t.Fatal(err)
	}
	before := run(t, "iptables-save", "-t", "nat")
	t.Cleanup(func() { // all tests share the namespace
		for _, link := range []string{"hk-br0", "hkv1", "notours"} {
			_ = exec.Command("ip", "link", "del", link).Run()
		}
	})
	run(t, "ip", "link", "set", "lo", "up")
	run(t, "ip", "link", "add", "hk-br0", "type", "bridge")
	run(t, "ip", "link", "add", "hkv1", "type", "veth", "peer", "name", "other")
	run(t, "ip", "link", "add", "notours", "type", "bridge")
	run(t, "ip", "route", "add", "10.77.0.0/16", "dev", "lo")
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"-N HK-A", "-N HK-B", "-A HK-A -j HK-B", "-A HK-B -j ACCEPT"} {
		run(t, "iptables", append([]string{"-w", "-t", "nat"}, strings.Fields(args)...)...)
	}
	for range 2 {
		run(t, "iptables", "-w", "-t", "nat", "-A", "POSTROUTING", "-m", "comment", "--comment", "a b", "-j", "HK-A")
	}
	for _, d := range []string{mounts, filepath.Join(mounts, "in"), filepath.Join(made, "deep")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(d, mounts) {
			if err := syscall.Mount("x", d, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	groups, err := cgroup.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := groups.Create(group+"/in", cgroup.Resources{}); err != nil {
		t.Fatal(err)
	}
	victim := exec.Command("sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	go victim.Wait()
	t.Cleanup(func() { _ = victim.Process.Kill() })
	if err := groups.AddProcess(group+"/in", victim.Process.Pid); err != nil {
		t.Fatal(err)
	}

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Undo(ended, path); err == nil {
		t.Errorf("interrupted: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error("an interrupted undo lost the journal")
	}
	for range 2 { // repeating it is not an error
		if err := Undo(context.Background(), path); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"hk-br0", "hkv1", "other"} {
		if _, err := netlink.LinkByName(name); err == nil {
			t.Errorf("link %s still exists", name)
		}
	}
	if _, err := netlink.LinkByName("notours"); err != nil {
		t.Error("a foreign link was removed")
	}
	if v, _ := os.ReadFile("/proc/sys/net/ipv4/ip_forward"); string(v) != "0\n" {
		t.Errorf("ip_forward is %q", v)
	}
	if routes := run(t, "ip", "route"); strings.Contains(routes, "10.77") {
		t.Errorf("routes still exist: %s", routes)
	}
	if after := run(t, "iptables-save", "-t", "nat"); strings.Contains(after, "HK-") {
		t.Errorf("rules before:\n%s\nafter:\n%s", before, after)
	}
	if info, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(info), mounts) {
		t.Error("mounts still exist")
	}
	if _, err := os.Stat(made); !os.IsNotExist(err) {
		t.Error("the directory was not removed")
	}
	if groups.Exists(group) {
		t.Error("cgroups still exist")
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Error("the journal still exists")
	}
}
