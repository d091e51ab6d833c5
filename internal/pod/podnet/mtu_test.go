package podnet

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"hyperkube/internal/host/netlinkutil"
)

// TestMTU checks that pod links have the MTU of the default route's link, and that packets to other
// nodes fit into the tunnel once it exists.
func TestMTU(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	machine := pod(t)
	inMachine := func(f func() error) {
		t.Helper()
		if err := within(machine, func(*netlink.Handle) error { return f() }); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	linkAndRoute := func(ns *os.File) (link, route int) {
		t.Helper()
		if err := within(ns, func(h *netlink.Handle) error {
			l, err := h.LinkByName(PodLink)
			if err != nil {
				return err
			}
			routes, err := h.RouteList(l, netlink.FAMILY_V4)
			for _, r := range routes {
				if r.Gw != nil {
					route = r.MTU
				}
			}
			link = l.Attrs().MTU
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return link, route
	}
	attach := func(n *Network, id string) *os.File {
		t.Helper()
		ns := pod(t)
		if _, err := n.Allocate(id); err != nil {
			t.Fatal(err)
		}
		if err := n.Attach(t.Context(), Pod{ID: id, Netns: ns}); err != nil {
			t.Fatal(err)
		}
		return ns
	}
	inMachine(func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out", MTU: 1400}, PeerName: "there"}); err != nil {
			return err
		}
		out, err := netlink.LinkByName("out")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(out); err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: out.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: netlinkutil.IPNet(netip.MustParsePrefix("0.0.0.0/0"))}); err != nil {
			return err
		}
		n, err := New(Config{
			Bridge: "hkt-br", LinkPrefix: "hkt", AddressDir: filepath.Join(dir, "addresses"), Tunnels: []string{"hkt-vxlan", "hkt-none"},
			CIDRs: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")},
		})
		if err != nil {
			return err
		}
		defer n.Close()
		attrs, err := n.setupBridge()
		if err != nil {
			return err
		}
		n.bridge, n.mtu = attrs.Index, attrs.MTU
		if link, route := linkAndRoute(attach(n, "first-of-all")); link != 1400 || route != 0 {
			t.Errorf("link %d, route %d, want those of the default route", link, route)
		}
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "hkt-vxlan", MTU: 1350}, PeerName: "elsewhere"}); err != nil {
			return err
		}
		if link, route := linkAndRoute(attach(n, "second-of-all")); link != 1400 || route != 1350 {
			t.Errorf("link %d, route %d, want that of the tunnel for the route", link, route)
		}
		return nil
	})
}
