package proxy

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/components/proxy/rules"
)

// udpFrontends maps the addresses and node ports of UDP services to their serving endpoints. It
// selects the conntrack entries to delete: the kernel keeps an entry as long as packets arrive, so
// a client that keeps sending would reach a removed endpoint forever.
type udpFrontends struct {
	byAddress  map[netip.AddrPort]map[netip.AddrPort]bool
	byNodePort map[uint16]map[netip.AddrPort]bool
}

// udpFrontendsOf returns the frontends of the UDP ports in ports. Traffic policies and topology are
// ignored: as with TCP, existing flows stay on their endpoint as long as it serves.
func udpFrontendsOf(ports []*rules.Port) udpFrontends {
	f := udpFrontends{map[netip.AddrPort]map[netip.AddrPort]bool{}, map[uint16]map[netip.AddrPort]bool{}}
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
		// A node port is matched by its number only. Flows to the same port of another host look
		// the same, so flows are deleted only if the service has serving endpoints.
		if p.NodePort != 0 && len(serving) > 0 {
			f.byNodePort[p.NodePort] = serving
		}
	}
	return f
}

// flush deletes the UDP flows of one IP family to endpoints that no longer serve from the kernel's conntrack table,
// in one pass. It returns the number of deleted flows, also with an error.
func (f udpFrontends) flush(ipv6 bool) (uint, error) {
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

// MatchConntrackFlow implements netlink.CustomConntrackFilter. It returns true for flows to delete:
// those to the address or node port of a service whose endpoint does not serve.
func (f udpFrontends) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
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
