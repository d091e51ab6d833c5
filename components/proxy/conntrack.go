package proxy

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/components/proxy/rules"
)

// staleFlows are UDP flows that the kernel would go on sending where they
// should no longer go: it remembers a translation as long as packets come.
type staleFlows struct {
	// gone are endpoints that are no more, by the address through which
	// they were reached.
	gone []flow
	// revived are addresses that had no endpoints and have now: flows to
	// them were not translated at all.
	revived []flow
}

// flow is UDP traffic to a service, translated to an endpoint if that is valid.
type flow struct {
	to       netip.Addr
	port     uint16
	endpoint netip.Addr
	nodePort bool
}

// compare notes what of a service's ports became stale.
func (s *staleFlows) compare(before, after []*rules.Port) {
	now := map[string]*rules.Port{}
	for _, p := range after {
		now[p.ID()+p.Protocol] = p
	}
	for _, old := range before {
		if old.Protocol != "udp" {
			continue
		}
		kept := map[netip.AddrPort]bool{}
		p := now[old.ID()+old.Protocol]
		if p != nil && p.ClusterIP == old.ClusterIP {
			for _, e := range p.Endpoints {
				kept[e.Address] = true
			}
		}
		for _, e := range old.Endpoints {
			if !kept[e.Address] {
				s.gone = append(s.gone, flows(old, e.Address.Addr())...)
			}
		}
	}
	was := map[string]bool{}
	for _, p := range before {
		was[p.ID()+p.Protocol] = len(p.Endpoints) > 0
	}
	for _, p := range after {
		if p.Protocol == "udp" && len(p.Endpoints) > 0 && !was[p.ID()+p.Protocol] {
			s.revived = append(s.revived, flows(p, netip.Addr{})...)
		}
	}
}

func flows(p *rules.Port, endpoint netip.Addr) []flow {
	out := []flow{{to: p.ClusterIP, port: p.Port, endpoint: endpoint}}
	for _, ips := range [][]netip.Addr{p.ExternalIPs, p.LoadBalancerIPs} {
		for _, ip := range ips {
			out = append(out, flow{to: ip, port: p.Port, endpoint: endpoint})
		}
	}
	if p.NodePort != 0 {
		out = append(out, flow{port: p.NodePort, endpoint: endpoint, nodePort: true})
	}
	return out
}

// flush ends the flows, in one pass over the kernel's table.
func (s *staleFlows) flush(ipv6 bool) error {
	all := append(append([]flow(nil), s.gone...), s.revived...)
	if len(all) == 0 {
		return nil
	}
	family := netlink.InetFamily(unix.AF_INET)
	if ipv6 {
		family = unix.AF_INET6
	}
	_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, matchAny(all))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("flushing conntrack: %w", err)
	}
	return nil
}

// matchAny matches a conntrack entry that is one of the flows.
type matchAny []flow

// MatchConntrackFlow as netlink.CustomConntrackFilter.
func (m matchAny) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, ok := netip.AddrFromSlice(f.Forward.DstIP)
	from, ok2 := netip.AddrFromSlice(f.Reverse.SrcIP)
	if !ok || !ok2 {
		return false
	}
	for _, want := range m {
		if f.Forward.DstPort != want.port || !want.nodePort && to.Unmap() != want.to {
			continue
		}
		if !want.endpoint.IsValid() || from.Unmap() == want.endpoint {
			return true
		}
	}
	return false
}
