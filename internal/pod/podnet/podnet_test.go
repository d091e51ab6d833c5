package podnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/testing/testisolate"
	"hyperkube/internal/testing/testnetns"
	"hyperkube/internal/testing/testwait"
)

// TestMain runs tests of root in a separate network namespace, so that they do not change the
// machine's network.
func TestMain(m *testing.M) { testisolate.Main(m, testisolate.Network) }

// TestNoCIDR checks that a network can be created before the pod CIDRs are known.
func TestNoCIDR(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("links need root")
	}
	ctx := context.Background()
	n, err := New(Config{Bridge: "hkn-br0", LinkPrefix: "hkn", AddressDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.Setup(ctx); !errors.Is(err, ErrNoCIDR) {
		t.Errorf("set up without addresses: %v", err)
	}
	if got := n.Addresses("pod"); len(got) > 0 {
		t.Errorf("a pod has %v", got)
	}
	if err := n.Attach(ctx, Pod{ID: "pod"}); err == nil {
		t.Error("a pod was attached")
	}
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}
	if err := n.PlanCIDRs(cidrs); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName("hkn-br0"); err == nil {
		t.Error("PlanCIDRs created the bridge")
	}
	if err := n.SetCIDRs(ctx, cidrs); err != nil {
		t.Fatal(err)
	}
	removeLink(t, "hkn-br0")
	link, err := netlink.LinkByName("hkn-br0")
	if err != nil {
		t.Fatal(err)
	}
	if have, err := netlink.AddrList(link, netlink.FAMILY_V4); err != nil || len(have) != 1 || have[0].IP.String() != "10.77.1.1" {
		t.Errorf("the bridge has %v (%v)", have, err)
	}
}

func TestPool(t *testing.T) {
	dir := t.TempDir()
	p, err := openPool(dir)
	if err != nil {
		t.Fatal(err)
	}
	cidr := netip.MustParsePrefix("10.9.0.0/29")
	seen := map[netip.Addr]bool{}
	for i := range 5 {
		addr, err := p.allocate(cidr, fmt.Sprint(i))
		if err != nil || seen[addr] {
			t.Fatalf("take %d: %s, %v", i, addr, err)
		}
		seen[addr] = true
	}
	for _, bad := range []string{"10.9.0.0", "10.9.0.1", "10.9.0.7"} {
		if seen[netip.MustParseAddr(bad)] {
			t.Errorf("gave %s", bad)
		}
	}
	if _, err := p.allocate(cidr, "x"); !errors.Is(err, errExhausted) {
		t.Errorf("allocating from a full CIDR: %v", err)
	}
	if err := p.free(func(id string) bool { return id == "2" }); err != nil {
		t.Fatal(err)
	}
	// A new pool loads the allocated addresses.
	p, err = openPool(dir)
	if err != nil {
		t.Fatal(err)
	}
	if addr, err := p.allocate(cidr, "y"); err != nil || addr.String() != "10.9.0.4" {
		t.Errorf("got %s, %v", addr, err)
	}
	if _, err := p.allocate(cidr, "z"); !errors.Is(err, errExhausted) {
		t.Errorf("allocating from a full CIDR: %v", err)
	}
}

// written returns what is written for a CIDR if iptables-save prints saved.
func written(t *testing.T, n *Network, cidr, saved string) string {
	t.Helper()
	kernel := &fakeKernel{state: packetfilter.ParseState(saved)}
	n.writer = packetfilter.NewWriter(packetfilter.Config{Shared: sharedChains, Backend: kernel})
	if err := n.writer.Sync(t.Context(), packetfilter.IPv4, n.rules(netip.MustParsePrefix(cidr))); err != nil {
		t.Fatal(err)
	}
	return kernel.first
}

// fakeKernel is a backend with a fixed state, until the first change.
type fakeKernel struct {
	state *packetfilter.State
	first string // the first change, as iptables-restore reads it
}

func (k *fakeKernel) Read(context.Context, packetfilter.Family) (*packetfilter.State, error) {
	return k.state, nil
}

func (k *fakeKernel) Apply(_ context.Context, _ packetfilter.Family, change packetfilter.Change) error {
	if k.first == "" {
		k.first = change.String()
	}
	return nil
}

func TestForeignRulesAreKept(t *testing.T) {
	n := &Network{cfg: Config{Bridge: "hk-br0"}, ports: map[string][]portRule{
		"a": {{PortMapping{"tcp", 8080, 80, netip.MustParseAddr("127.0.0.1")}, netip.MustParseAddr("10.9.0.2")}},
	}}
	const cidr = "10.9.0.0/24"
	fresh := written(t, n, cidr, "")
	for _, want := range []string{":HK-NOMASQ", "-A POSTROUTING ", "-I FORWARD 1 ", "! -o hk-br0 -j MASQUERADE",
		"-A HK-HOSTPORTS -d 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.9.0.2:80"} {
		if !strings.Contains(fresh, want) {
			t.Errorf("no %q in\n%s", want, fresh)
		}
	}
	again := written(t, n, cidr, "*nat\n:HK-NOMASQ - [0:0]\n-A POSTROUTING -m comment --comment \"hyperkube pod network\" -j HK-POSTROUTING\nCOMMIT\n")
	for _, unwanted := range []string{":HK-NOMASQ", "-A POSTROUTING "} {
		if strings.Contains(again, unwanted) {
			t.Errorf("%q was written again", unwanted)
		}
	}
}

// removeLink removes a link, if it exists, at the end of the test.
func removeLink(t testing.TB, name string) {
	t.Cleanup(func() {
		if link, err := netlink.LinkByName(name); err == nil {
			if err := netlink.LinkDel(link); err != nil {
				t.Error(err)
			}
		}
	})
}

// pod starts a process in a separate network namespace.
func pod(t *testing.T) *os.File {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// serve responds to each connection to port 80 in a namespace with the address of the client.
func serve(t *testing.T, ns *os.File) {
	t.Helper()
	var l net.Listener
	err := within(ns, func(*netlink.Handle) (err error) {
		l, err = net.Listen("tcp", ":80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go testnetns.Serve(l, func(caller string) string { return caller })
}

func ask(t *testing.T, ns *os.File, addr string) string {
	t.Helper()
	var answer []byte
	call := func() error {
		c, err := net.DialTimeout("tcp", addr, time.Minute)
		if err != nil {
			return err
		}
		defer c.Close()
		answer, err = io.ReadAll(c)
		return err
	}
	var err error
	if ns == nil {
		err = call()
	} else {
		err = within(ns, func(*netlink.Handle) error { return call() })
	}
	if err != nil {
		t.Errorf("calling %s: %v", addr, err)
	}
	return string(answer)
}

func TestPods(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	journal, err := hostjournal.Open(filepath.Join(dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	removeLink(t, "hk-br0")
	n, err := New(Config{Bridge: "hk-br0", LinkPrefix: "hk", AddressDir: filepath.Join(dir, "ips"), Journal: journal,
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("fd09::/64")}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	ctx := context.Background()
	for range 2 { // the second call repairs
		if err := n.Setup(ctx); err != nil {
			t.Fatal(err)
		}
	}
	save, err := packetfilter.Save(ctx, packetfilter.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(save, "-A POSTROUTING"); got != 1 {
		t.Errorf("%d jumps from POSTROUTING:\n%s", got, save)
	}
	one, two := pod(t), pod(t)
	ids := []string{"aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"}
	var addrs [][]netip.Addr
	for i, ns := range []*os.File{one, two} {
		got, err := n.Allocate(ids[i])
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, got)
		var ports []PortMapping
		if i == 0 {
			ports = []PortMapping{{Protocol: "tcp", HostPort: 8080, PodPort: 80}, {Protocol: "udp", HostPort: 8080, PodPort: 80}}
		}
		if err := n.Attach(ctx, Pod{ID: ids[i], Netns: ns, Ports: ports}); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(addrs); got != "[[10.9.0.2 fd09::2] [10.9.0.3 fd09::3]]" {
		t.Errorf("addresses are %s", got)
	}
	serve(t, one)
	for name, c := range map[string]struct {
		from *os.File
		to   string
		want string
	}{
		"host to pod":              {nil, "10.9.0.2:80", "10.9.0.1"},
		"pod to pod":               {two, "10.9.0.2:80", "10.9.0.3"},
		"pod to pod, IPv6":         {two, "[fd09::2]:80", "fd09::3"},
		"host port from loopback":  {nil, "127.0.0.1:8080", "10.9.0.1"},
		"host port from the host":  {nil, "10.9.0.1:8080", "10.9.0.1"},
		"host port from a pod":     {two, "10.9.0.1:8080", "10.9.0.3"},
		"host port from the same":  {one, "10.9.0.1:8080", "10.9.0.1"},
		"host to pod by IPv6":      {nil, "[fd09::2]:80", "fd09::1"},
		"the pod's own loopback":   {one, "127.0.0.1:80", "127.0.0.1"},
		"the pod's own address":    {one, "10.9.0.2:80", "10.9.0.2"},
		"the pod's own by IPv6":    {one, "[fd09::2]:80", "fd09::2"},
		"host port, IPv6 by a pod": {two, "[fd09::1]:8080", "fd09::3"},
	} {
		if got := ask(t, c.from, c.to); got != c.want {
			t.Errorf("%s: seen as %q, want %q", name, got, c.want)
		}
	}
	if traffic, err := n.Traffic(ids[0]); err != nil || traffic.RxBytes == 0 || traffic.TxBytes == 0 {
		t.Errorf("traffic is %+v, %v", traffic, err)
	}
	// After a CIDR change, existing pods keep their gateway.
	if err := n.SetCIDRs(ctx, []netip.Prefix{netip.MustParsePrefix("10.10.0.0/24")}); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, nil, "10.9.0.2:80"); got != "10.9.0.1" {
		t.Errorf("after a CIDR change the existing pod saw %q", got)
	}
	// A new Network removes orphaned links and addresses.
	n2, err := New(Config{Bridge: "hk-br0", LinkPrefix: "hk", AddressDir: filepath.Join(dir, "ips"), CIDRs: n.CIDRs()})
	if err != nil {
		t.Fatal(err)
	}
	defer n2.Close()
	if err := n2.Reconcile(func(id string) bool { return id == ids[0] }); err != nil {
		t.Fatal(err)
	}
	if len(n2.Addresses(ids[1])) != 0 || len(n2.Addresses(ids[0])) != 2 {
		t.Error("wrong addresses were freed")
	}
	if _, err := netlink.LinkByName(n.veth(ids[1])); err == nil {
		t.Error("the link of a deleted pod still exists")
	}
	for range 2 { // repeating it is not an error
		if err := n.Detach(ctx, ids[0]); err != nil {
			t.Error(err)
		}
	}
	if err := n.Free(ids[0]); err != nil {
		t.Error(err)
	}
	save, err = packetfilter.Save(ctx, packetfilter.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(save, "8080") {
		t.Errorf("host ports still exist:\n%s", save)
	}
}

// TestKeep checks that rules flushed by another program are restored.
func TestKeep(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	removeLink(t, "hk-br1")
	n, err := New(Config{Bridge: "hk-br1", LinkPrefix: "hx", AddressDir: t.TempDir(), CIDRs: []netip.Prefix{netip.MustParsePrefix("10.11.0.0/24")}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.Maintain(ctx)
	}()
	defer func() { cancel(); <-ended }()
	<-n.writer.Ready()
	if err := n.Setup(ctx); err != nil {
		t.Fatal(err)
	}
	pod := []netip.Addr{netip.MustParseAddr("10.11.0.2")}
	if err := n.SetPorts(ctx, "a", pod, []PortMapping{{Protocol: "tcp", HostPort: 8081, PodPort: 80}}); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{
		"iptables -t nat -F", "iptables -t nat -F HK-HOSTPORTS", "iptables -t mangle -F", "iptables -F HK-FORWARD", "iptables -F HK-INPUT", "iptables -F INPUT",
		"printf '*nat\\nCOMMIT\\n*mangle\\nCOMMIT\\n*filter\\nCOMMIT\\n' | iptables-restore",
	} {
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		testwait.Succeed(t, "the restored rules after "+command, func() error {
			save, err := packetfilter.Save(ctx, packetfilter.IPv4)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				"-A FORWARD -m comment --comment \"hyperkube pod network\" -j HK-FORWARD", "-A HK-FORWARD -i hk-br1",
				"-A INPUT -m comment --comment \"hyperkube services of this host\" -j HK-INPUT", "-A HK-INPUT -i hk-br1 -m conntrack --ctstate DNAT", "--dport 8081 -j DNAT",
				"-A POSTROUTING -m comment --comment \"hyperkube pod network\" -j HK-POSTROUTING", "-j MASQUERADE", "-j HK-POLICY",
			} {
				if !strings.Contains(save, want) {
					return fmt.Errorf("%q was not restored:\n%s", want, save)
				}
			}
			return nil
		})
	}
}

func BenchmarkAttach(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root for network namespaces")
	}
	removeLink(b, "hk-br0")
	n, err := New(Config{Bridge: "hk-br0", LinkPrefix: "hk", AddressDir: b.TempDir(), CIDRs: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}})
	if err != nil {
		b.Fatal(err)
	}
	defer n.Close()
	if err := n.Setup(context.Background()); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprintf("%016d", i*100000)
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := n.Allocate(id); err != nil {
			b.Fatal(err)
		}
		if err := n.Attach(context.Background(), Pod{ID: id, Netns: ns}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		ns.Close()
		_ = n.Detach(context.Background(), id)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		b.StartTimer()
	}
}

// TestRemover removes links of pods one by one and concurrently, including duplicates and links
// that do not exist.
func TestRemover(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	r, err := newRemover()
	if err != nil {
		t.Fatal(err)
	}
	defer r.netlink.Close()
	var links []int
	for i := range 20 {
		name := fmt.Sprintf("hkt%d", i)
		if err := r.netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "p" + name}); err != nil {
			t.Fatal(err)
		}
		link, err := r.netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, link.Attrs().Index)
	}
	if err := r.remove(links[0]); err != nil {
		t.Error(err)
	}
	if err := r.remove(links[:3]...); err != nil {
		t.Error(err)
	}
	if err := r.remove(links[:3]...); err != nil {
		t.Errorf("removing missing links: %v", err)
	}
	var wait sync.WaitGroup
	for i := range links {
		wait.Go(func() {
			if err := r.remove(links[i], links[(i+1)%len(links)]); err != nil {
				t.Error(err)
			}
			if _, err := r.netlink.LinkByIndex(links[i]); err == nil {
				t.Errorf("link %d still exists", i)
			}
		})
	}
	wait.Wait()
	all, err := r.netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		if strings.Contains(l.Attrs().Name, "hkt") {
			t.Errorf("%s still exists", l.Attrs().Name)
		}
	}
}
