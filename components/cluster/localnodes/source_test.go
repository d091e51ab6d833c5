package localnodes

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"hyperkube/internal/layout"
	"hyperkube/internal/testnetns"
)

// TestSource: further nodes see the machine by its node's address, and by the
// bridge's when that is not the machine's.
func TestSource(t *testing.T) {
	testnetns.Enter(t)
	m := Machine{Layout: layout.Under(t.TempDir()), Subnet: netip.MustParsePrefix("192.168.94.0/24"), Subnet6: netip.MustParsePrefix("fd00:94::/64")}
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
			t.Fatalf("the way to %s: %v, %v", to, routes, err)
		}
		return routes[0].Src.String()
	}
	m.Own = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}
	for range 2 {
		if err := m.ensureSource(3); err != nil {
			t.Fatal(err)
		}
	}
	for i, to := range m.Addresses(3) {
		if got := source(to); got != m.Own[i].String() {
			t.Errorf("from %s to %s, want from %s", got, to, m.Own[i])
		}
	}
	if err := netlink.LinkDel(out); err != nil {
		t.Fatal(err)
	}
	if got := source(m.Addresses(3)[0]); got != "192.168.94.1" {
		t.Errorf("when the address is gone, from %s", got)
	}
	m.Own = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	if err := m.ensureSource(3); err != nil {
		t.Errorf("of an address of others: %v", err)
	}
	if got := source(m.Addresses(3)[0]); got != "192.168.94.1" {
		t.Errorf("with an address of others, from %s", got)
	}
}
