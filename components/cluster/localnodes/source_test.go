package localnodes

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"hyperkube/internal/host/layout"
	"hyperkube/internal/testing/testnetns"
)

// TestSourceRoutes checks that additional nodes see the host with the address of its node, and with the
// address of the bridge if the machine does not have the node's address.
func TestSourceRoutes(t *testing.T) {
	testnetns.Enter(t)
	m := Network{Layout: layout.Under(t.TempDir()), Subnet: netip.MustParsePrefix("192.168.94.0/24"), Subnet6: netip.MustParsePrefix("fd00:94::/64")}
	link := func(name string, addresses ...*netlink.Addr) netlink.Link {
		t.Helper()
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Flags = name, net.FlagUp
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			t.Fatal(err)
		}
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addresses {
			if err := netlink.AddrAdd(l, a); err != nil {
				t.Fatal(err)
			}
		}
		return l
	}
	bridge := link(Bridge(m.Layout), address(m.Subnet, 1), address(m.Subnet6, 1))
	out := link("out", address(netip.MustParsePrefix("192.0.2.0/24"), 7), address(netip.MustParsePrefix("2001:db8::/64"), 7))
	source := func(to netip.Addr) string {
		t.Helper()
		routes, err := netlink.RouteGet(to.AsSlice())
		if err != nil || len(routes) != 1 || routes[0].LinkIndex != bridge.Attrs().Index {
			t.Fatalf("route to %s: %v, %v", to, routes, err)
		}
		return routes[0].Src.String()
	}
	m.HostAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}
	for range 2 {
		if err := m.ensureSourceRoutes(3); err != nil {
			t.Fatal(err)
		}
	}
	for i, to := range m.Addresses(3) {
		if got := source(to); got != m.HostAddresses[i].String() {
			t.Errorf("source address %s of traffic to %s, want %s", got, to, m.HostAddresses[i])
		}
	}
	if err := netlink.LinkDel(out); err != nil {
		t.Fatal(err)
	}
	if got := source(m.Addresses(3)[0]); got != "192.168.94.1" {
		t.Errorf("source address %s after removal of the address", got)
	}
	m.HostAddresses = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	if err := m.ensureSourceRoutes(3); err != nil {
		t.Errorf("address of another machine: %v", err)
	}
	if got := source(m.Addresses(3)[0]); got != "192.168.94.1" {
		t.Errorf("source address %s with an address of another machine", got)
	}
}
