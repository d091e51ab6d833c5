package proxy

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/components/proxy/rules"
)

// frontends are the addresses of UDP services with the endpoints that serve
// behind them. The kernel remembers a translation as long as packets come: a flow
// that was led elsewhere, or nowhere, goes on so until it is ended.
type frontends struct {
	byAddress  map[netip.AddrPort]map[netip.AddrPort]bool
	byNodePort map[uint16]map[netip.AddrPort]bool
}

// frontendsOf returns those of the UDP ports among ports. Traffic policies and
// topology do not matter: as with TCP, flows that there are stay where they are
// as long as somebody serves there.
func frontendsOf(ports []*rules.Port) frontends {
	f := frontends{map[netip.AddrPort]map[netip.AddrPort]bool{}, map[uint16]map[netip.AddrPort]bool{}}
	for _, p := range ports {
		if p.Protocol != "udp" {
			continue
		}
		serving := map[netip.AddrPort]bool{}
		for _, at := range p.Serving {
			serving[at] = true
		}
		for _, ips := range [][]netip.Addr{{p.ClusterIP}, p.ExternalIPs, p.LoadBalancerIPs} {
			for _, ip := range ips {
				f.byAddress[netip.AddrPortFrom(ip, p.Port)] = serving
			}
		}
		// A node port is known by its number alone: flows to the same port of
		// somebody else look alike, so it needs a reason to end any.
		if p.NodePort != 0 && len(serving) > 0 {
			f.byNodePort[p.NodePort] = serving
		}
	}
	return f
}

// flush ends the flows that lead where nobody serves any more, in one pass over
// the kernel's table, and tells how many.
func (f frontends) flush(ipv6 bool) (uint, error) {
	if len(f.byAddress) == 0 {
		return 0, nil
	}
	family := netlink.InetFamily(unix.AF_INET)
	if ipv6 {
		family = unix.AF_INET6
	}
	n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, f)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return n, fmt.Errorf("flushing conntrack: %w", err)
	}
	return n, nil
}

// MatchConntrackFlow as netlink.CustomConntrackFilter: true for a flow to end.
func (f frontends) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	from, ok2 := netip.AddrFromSlice(flow.Reverse.SrcIP)
	if !ok || !ok2 {
		return false
	}
	serving, known := f.byAddress[netip.AddrPortFrom(to.Unmap(), flow.Forward.DstPort)]
	if !known {
		serving, known = f.byNodePort[flow.Forward.DstPort]
	}
	return known && !serving[netip.AddrPortFrom(from.Unmap(), flow.Reverse.SrcPort)]
}
