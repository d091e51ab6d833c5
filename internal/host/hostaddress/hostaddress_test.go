package hostaddress

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/testing/testisolate"
)

// TestMain runs tests of root in a separate network namespace.
func TestMain(m *testing.M) { testisolate.Main(m, testisolate.Network) }

// The link indexes of TestAddress.
const (
	lo, eth0, eth1, bridge, tunnel, down = 1, 2, 3, 4, 5, 6
)

func links() []netlink.Link {
	var out []netlink.Link
	for _, l := range []netlink.LinkAttrs{
		{Index: lo, Name: "lo", Flags: net.FlagUp | net.FlagLoopback},
		{Index: bridge, Name: "hk-br0", Flags: net.FlagUp | net.FlagBroadcast},
		{Index: tunnel, Name: "wg0", Flags: net.FlagUp | net.FlagPointToPoint},
		{Index: down, Name: "eth9", Flags: net.FlagBroadcast},
		{Index: eth0, Name: "eth0", Flags: net.FlagUp | net.FlagBroadcast},
		{Index: eth1, Name: "eth1", Flags: net.FlagUp | net.FlagBroadcast},
	} {
		out = append(out, &netlink.Dummy{LinkAttrs: l})
	}
	return out
}

func addr(link int, text string, flags int) netlink.Addr {
	ip, prefix, err := net.ParseCIDR(text)
	if err != nil {
		panic(err)
	}
	return netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: prefix.Mask}, Flags: flags, LinkIndex: link}
}

func via(link, metric int) netlink.Route {
	return netlink.Route{LinkIndex: link, Priority: metric, Type: unix.RTN_UNICAST}
}

func TestAddress(t *testing.T) {
	everywhere := &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	lan := &net.IPNet{IP: net.IPv4(192, 0, 2, 0), Mask: net.CIDRMask(24, 32)}
	for _, c := range []struct {
		name   string
		routes []netlink.Route
		addrs  []netlink.Addr
		want   string // empty: no address
	}{
		{"of the default route's link", []netlink.Route{via(eth1, 0)},
			[]netlink.Addr{addr(eth0, "192.0.2.1/24", 0), addr(eth1, "198.51.100.1/24", 0)}, "198.51.100.1"},
		{"the kernel's preferred route", []netlink.Route{via(eth0, 600), via(eth1, 100)},
			[]netlink.Addr{addr(eth0, "192.0.2.1/24", 0), addr(eth1, "198.51.100.1/24", 0)}, "198.51.100.1"},
		{"the route's own source", []netlink.Route{{LinkIndex: eth0, Src: net.IPv4(203, 0, 113, 1)}},
			[]netlink.Addr{addr(eth0, "192.0.2.1/24", 0)}, "203.0.113.1"},
		{"an unreachable source", []netlink.Route{{LinkIndex: eth0, Src: net.IPv4(169, 254, 0, 1)}},
			[]netlink.Addr{addr(eth0, "192.0.2.1/24", 0)}, "192.0.2.1"},
		{"a multipath route", []netlink.Route{{Dst: everywhere, MultiPath: []*netlink.NexthopInfo{{LinkIndex: tunnel}, {LinkIndex: eth1}}}},
			[]netlink.Addr{addr(eth0, "2001:db8:1::1/64", 0), addr(eth1, "2001:db8:2::1/64", 0)}, "2001:db8:2::1"},
		{"a route to another network", []netlink.Route{{LinkIndex: eth1, Dst: lan}},
			[]netlink.Addr{addr(eth0, "192.0.2.1/24", 0), addr(eth1, "198.51.100.1/24", 0)}, "192.0.2.1"},
		{"an unreachable default route", []netlink.Route{{LinkIndex: lo, Type: unix.RTN_UNREACHABLE}},
			[]netlink.Addr{addr(lo, "2001:db8::9/128", 0), addr(eth0, "2001:db8::1/64", 0)}, "2001:db8::1"},
		{"links without addresses", []netlink.Route{via(eth0, 0)},
			[]netlink.Addr{addr(lo, "127.0.0.1/8", 0), addr(lo, "192.0.2.9/32", 0), addr(eth0, "169.254.1.1/16", 0), addr(eth1, "198.51.100.1/24", 0)}, "192.0.2.9"},
		{"a default route and an address on another link", []netlink.Route{via(eth0, 0)},
			[]netlink.Addr{addr(lo, "127.0.0.1/8", 0), addr(eth1, "198.51.100.1/24", 0)}, "198.51.100.1"},
		{"a deprecated address", []netlink.Route{via(eth0, 0)},
			[]netlink.Addr{addr(eth0, "2001:db8::1/64", unix.IFA_F_DEPRECATED), addr(eth0, "2001:db8::2/64", 0)}, "2001:db8::2"},
		{"a temporary address", []netlink.Route{via(eth0, 0)},
			[]netlink.Addr{addr(eth0, "2001:db8::1/64", unix.IFA_F_TEMPORARY), addr(eth0, "2001:db8::2/64", 0)}, "2001:db8::2"},
		{"a tentative address", []netlink.Route{via(eth0, 0)},
			[]netlink.Addr{addr(eth0, "2001:db8::1/64", unix.IFA_F_TENTATIVE), addr(eth0, "2001:db8::2/64", 0)}, "2001:db8::2"},
		{"an optimistic address", []netlink.Route{via(eth0, 0)},
			[]netlink.Addr{addr(eth0, "2001:db8::1/64", unix.IFA_F_TENTATIVE|unix.IFA_F_OPTIMISTIC), addr(eth0, "2001:db8::2/64", 0)}, "2001:db8::1"},
		{"only a deprecated address", []netlink.Route{via(eth0, 0)}, []netlink.Addr{addr(eth0, "192.0.2.1/24", unix.IFA_F_DEPRECATED)}, "192.0.2.1"},
		{"another's", []netlink.Route{via(eth0, 0)}, []netlink.Addr{addr(eth0, "2001:db8::1/64", unix.IFA_F_DADFAILED|unix.IFA_F_TENTATIVE)}, ""},
		{"a secondary address", []netlink.Route{via(eth0, 0)},
			[]netlink.Addr{addr(eth0, "192.0.2.1/24", unix.IFA_F_DEPRECATED), addr(eth0, "192.0.2.2/24", unix.IFA_F_SECONDARY)}, "192.0.2.2"},
		{"a link that is down", []netlink.Route{via(down, 0)},
			[]netlink.Addr{addr(down, "192.0.2.1/24", 0), addr(eth0, "198.51.100.1/24", 0)}, "198.51.100.1"},
		{"without routes, not the pods' bridge", nil, []netlink.Addr{addr(lo, "::1/128", 0), addr(bridge, "fd00:10:244::1/64", 0)}, ""},
		{"without routes, a link before a tunnel", nil, []netlink.Addr{addr(tunnel, "192.0.2.1/32", 0), addr(eth0, "198.51.100.1/24", 0)}, "198.51.100.1"},
		{"without routes, a tunnel before loopback", nil, []netlink.Addr{addr(lo, "203.0.113.1/32", 0), addr(tunnel, "192.0.2.1/32", 0)}, "192.0.2.1"},
		{"without routes, only loopback", nil, []netlink.Addr{addr(lo, "127.0.0.1/8", 0), addr(lo, "203.0.113.1/32", 0)}, "203.0.113.1"},
		{"nothing", nil, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _ := machine{c.routes, links(), c.addrs}.address()
			var want netip.Addr
			if c.want != "" {
				want = netip.MustParseAddr(c.want)
			}
			if got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// TestKernel reads the network configuration of a machine with a multipath route and a pod bridge.
func TestKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	ip(t, `link set lo up
link add hk-br0 type bridge
link set hk-br0 up
addr add fd00:10:244::1/64 dev hk-br0 nodad
link add eth0 type veth peer name peer0
link add eth1 type veth peer name peer1
link set peer0 up
link set peer1 up
link set eth0 up
link set eth1 up
addr add 192.0.2.1/24 dev eth0
addr add 198.51.100.1/24 dev eth1 preferred_lft 0 valid_lft 1000
addr add 198.51.100.2/24 dev eth1
route add default nexthop dev eth1 via 198.51.100.254 nexthop dev eth0 via 192.0.2.254`)
	if got, err := Of(netlink.FAMILY_V4); err != nil || got.String() != "198.51.100.2" {
		t.Errorf("IPv4 address %v, %v", got, err)
	}
	if got, err := Of(netlink.FAMILY_V6); err != nil || got.IsValid() {
		t.Errorf("IPv6 address %v, %v", got, err)
	}
	if got, err := All(); err != nil || fmt.Sprint(got) != "[198.51.100.2]" {
		t.Errorf("All: %v, %v", got, err)
	}
	advertised := func(bind, want string) {
		t.Helper()
		if got, err := Advertised(netip.MustParseAddr(bind)); err != nil || got.String() != want {
			t.Errorf("Advertised(%s): %v, %v; want %s", bind, got, err, want)
		}
	}
	for _, bind := range []string{"0.0.0.0", "::", "127.0.0.1", "::1", "::ffff:0.0.0.0"} {
		advertised(bind, "198.51.100.2")
	}
	advertised("203.0.113.9", "203.0.113.9")
	ip(t, `addr add fd01::1/64 dev eth0 nodad
route add default via fd01::fe dev eth0`)
	advertised("0.0.0.0", "198.51.100.2")
	advertised("::", "fd01::1")
	advertised("::1", "fd01::1")
	ip(t, `-4 route del default`)
	if got, err := All(); err != nil || fmt.Sprint(got) != "[fd01::1]" {
		t.Errorf("with only an IPv6 default route: All: %v, %v", got, err)
	}
	advertised("0.0.0.0", "fd01::1")
	ip(t, "-6 route del default")
	advertised("0.0.0.0", "192.0.2.1")
	advertised("::", "fd01::1")
	ip(t, "link set eth0 down\nlink set eth1 down\nlink del hk-br0")
	if got, err := Advertised(netip.IPv4Unspecified()); err != nil || got.IsValid() {
		t.Errorf("without an address: %v, %v", got, err)
	}
	ip(t, "link del eth0\nlink del eth1")
}

// ip runs ip(8) once per line of arguments.
func ip(t *testing.T, lines string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
}
