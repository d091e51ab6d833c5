package hostjournal_test

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
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/packetfilter"
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
	j, err := hostjournal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if err := j.Record(
		hostjournal.Change{Kind: hostjournal.Dir, Name: made},
		hostjournal.Change{Kind: hostjournal.Link, Name: "hk-br0"}, hostjournal.Change{Kind: hostjournal.Link, Name: "hkv*"},
		hostjournal.Change{Kind: hostjournal.Sysctl, Name: "net/ipv4/ip_forward", Before: "0"},
		hostjournal.Change{Kind: hostjournal.Route, Name: "10.77.0.0/16", Before: "lo"},
		hostjournal.Change{Kind: hostjournal.Chain, Name: "4 nat HK-A"}, hostjournal.Change{Kind: hostjournal.Chain, Name: "4 nat HK-B"}, hostjournal.Change{Kind: hostjournal.Chain, Name: "4 nat HK-NEVER-MADE"},
		hostjournal.Change{Kind: hostjournal.Rule, Name: "4 nat POSTROUTING", Args: []string{"-m", "comment", "--comment", "a b", "-j", "HK-A"}},
		hostjournal.Change{Kind: hostjournal.Rule, Name: "4 nat HK-GONE", Args: []string{"-j", "ACCEPT"}},
		hostjournal.Change{Kind: hostjournal.Mount, Name: mounts},
		hostjournal.Change{Kind: hostjournal.Cgroup, Name: group},
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
	if err := hostjournal.Undo(ended, path, packetfilter.Undo()); err == nil {
		t.Errorf("interrupted: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error("an interrupted undo lost the journal")
	}
	for range 2 { // repeating it is not an error
		if err := hostjournal.Undo(context.Background(), path, packetfilter.Undo()); err != nil {
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

// TestStoredJournal checks that a journal of an earlier version is reverted: its records of chains and
// rules have a fixed format.
func TestStoredJournal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to change rules")
	}
	const (
		stored = `{"kind":"chain","name":"4 nat HK-POSTROUTING"}
{"kind":"chain","name":"4 nat HK-HOSTPORTS"}
{"kind":"chain","name":"4 mangle HK-NP-*"}
{"kind":"rule","name":"4 nat POSTROUTING","args":["-m","comment","--comment","hyperkube pod network","-j","HK-POSTROUTING"]}
{"kind":"rule","name":"4 nat PREROUTING","args":["-m","comment","--comment","hyperkube host ports","-m","addrtype","--dst-type","LOCAL","-j","HK-HOSTPORTS"]}
{"kind":"chain","name":"4 nat KUBE-SVC-*"}
{"kind":"chain","name":"4 nat KUBE-SERVICES"}
{"kind":"rule","name":"4 filter FORWARD","args":["-m","comment","--comment","kubernetes service portals","-m","conntrack","--ctstate","NEW","-j","KUBE-SERVICES"]}
{"kind":"rule","name":"4 nat OUTPUT","args":["-s","127.0.0.0/255.0.0.0","-m","comment","--comment","other notation","-j","KUBE-SERVICES"]}
{"kind":"chain","name":"4 filter KUBE-SERVICES"}
{"kind":"rule","name":"6 filter FORWARD","args":["-m","comment","--comment","hyperkube pod network","-j","HK-FORWARD"]}
{"kind":"chain","name":"6 filter HK-FORWARD"}
`
		rules4 = `*nat
:HK-POSTROUTING - [0:0]
:HK-HOSTPORTS - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
-A KUBE-SERVICES -j KUBE-SVC-A
-A POSTROUTING -m comment --comment "hyperkube pod network" -j HK-POSTROUTING
-A PREROUTING -m comment --comment "hyperkube host ports" -m addrtype --dst-type LOCAL -j HK-HOSTPORTS
-A OUTPUT -m comment --comment "other notation" -s 127.0.0.0/8 -j KUBE-SERVICES
-A OUTPUT -m comment --comment theirs -j ACCEPT
COMMIT
*filter
:KUBE-SERVICES - [0:0]
-A FORWARD -m comment --comment "kubernetes service portals" -m conntrack --ctstate NEW -j KUBE-SERVICES
COMMIT
*mangle
:HK-NP-A - [0:0]
:HK-NP-B - [0:0]
-A HK-NP-A -j HK-NP-B
COMMIT
`
		rules6 = "*filter\n:HK-FORWARD - [0:0]\n-A FORWARD -m comment --comment \"hyperkube pod network\" -j HK-FORWARD\nCOMMIT\n"
	)
	for tool, rules := range map[string]string{"iptables-restore": rules4, "ip6tables-restore": rules6} {
		cmd := exec.Command(tool, "--noflush")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", tool, err, out)
		}
	}
	t.Cleanup(func() { run(t, "iptables", "-t", "nat", "-F", "OUTPUT") }) // all tests share the namespace
	path := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(path, []byte(stored), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := hostjournal.Undo(t.Context(), path, packetfilter.Undo()); err != nil {
		t.Fatal(err)
	}
	after := run(t, "iptables-save") + run(t, "ip6tables-save")
	if strings.Contains(after, "HK-") || strings.Contains(after, "KUBE-") {
		t.Errorf("rules still exist:\n%s", after)
	}
	if !strings.Contains(after, "theirs") {
		t.Errorf("a rule of another program was removed:\n%s", after)
	}
}
