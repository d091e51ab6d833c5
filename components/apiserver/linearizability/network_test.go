package linearizability

import (
	"fmt"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"hyperkube/internal/testing/testnetns"
)

// bridgeName and bridgeAddress are the link of the test to the network of the processes.
const (
	bridgeName    = "lin0"
	bridgeAddress = "192.0.2.100/24"
)

// host is a network namespace with one address.
type host struct {
	t         testing.TB
	address   string
	namespace *testnetns.Namespace
}

// newHosts creates hosts in one network, to which this process is also connected.
func newHosts(t *testing.T, n int) []*host {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}))
	bridge, err := netlink.LinkByName(bridgeName)
	must(err)
	t.Cleanup(func() {
		if err := netlink.LinkDel(bridge); err != nil {
			t.Error(err)
		}
	})
	must(setUp(bridgeName, bridgeAddress))
	var hosts []*host
	for i := range n {
		h := &host{t: t, address: fmt.Sprint("192.0.2.", i+1), namespace: testnetns.New(t)}
		name := fmt.Sprint("lin-", i)
		must(netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index}, PeerName: "eth0", PeerNamespace: netlink.NsPid(h.namespace.Thread()),
		}))
		t.Cleanup(func() {
			if link, err := netlink.LinkByName(name); err == nil {
				_ = netlink.LinkDel(link) // it is also deleted with the namespace
			}
		})
		must(setUp(name))
		h.namespace.Run(func() {
			if err = setUp("lo"); err == nil {
				err = setUp("eth0", h.address+"/24")
			}
		})
		must(err)
		hosts = append(hosts, h)
	}
	return hosts
}

func setUp(name string, addresses ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

// port returns an address of the host with a port.
func (h *host) port(port string) string { return net.JoinHostPort(h.address, port) }

// drop silently drops all packets from the other hosts.
func (h *host) drop(from ...*host) {
	for _, other := range from {
		h.iptables("-A", "INPUT", "-s", other.address, "-j", "DROP")
	}
}

// heal ends all partitions of the host.
func (h *host) heal() { h.iptables("-F", "INPUT") }

func (h *host) iptables(args ...string) {
	h.namespace.Run(func() {
		if out, err := exec.Command("iptables", append([]string{"-w"}, args...)...).CombinedOutput(); err != nil {
			h.t.Errorf("iptables %v: %v: %s", args, err, out)
		}
	})
}

// partition drops the packets between each host of one group and each host of the other one.
func partition(one, other []*host) {
	for _, a := range one {
		a.drop(other...)
		for _, b := range other {
			b.drop(a)
		}
	}
}

// TestPartition checks that a partition drops packets in both directions, only between its hosts, and
// ends.
func TestPartition(t *testing.T) {
	hosts := newHosts(t, 3)
	for _, h := range hosts {
		h.namespace.Run(func() {
			listener, err := net.Listen("tcp", h.port("80"))
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { listener.Close() })
			go testnetns.Serve(listener, func(string) string { return "" })
		})
	}
	check := func(connected bool) {
		t.Helper()
		for i, from := range hosts {
			for j, to := range hosts {
				if i == j {
					continue
				}
				want, timeout := connected || i == 2 || j == 2, time.Minute
				if !want {
					timeout = 200 * time.Millisecond
				}
				var err error
				from.namespace.Run(func() {
					var conn net.Conn
					if conn, err = net.DialTimeout("tcp", to.port("80"), timeout); err == nil {
						conn.Close()
					}
				})
				if (err == nil) != want {
					t.Errorf("%d to %d: %v", i, j, err)
				}
			}
		}
	}
	check(true)
	partition(hosts[:1], hosts[1:2])
	check(false)
	hosts[0].heal()
	hosts[1].heal()
	check(true)
}
