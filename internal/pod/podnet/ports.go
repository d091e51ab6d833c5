package podnet

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/host/packetfilter"
)

// PortMapping maps a port of the host to a port of a pod, for one protocol.
type PortMapping struct {
	// Protocol is "tcp", "udp" or "sctp".
	Protocol string
	// HostPort and PodPort are between 1 and 65535.
	HostPort, PodPort uint16
	// HostIP restricts the mapping to one address of the host. The zero value and the unspecified
	// address mean all addresses.
	HostIP netip.Addr
}

type portRule struct {
	PortMapping
	pod netip.Addr
}

// SetPorts replaces the host ports of the pod id with ports, which lead to addrs, the addresses of
// the pod. An empty list removes them. It writes the rules of all pods together, which also
// restores missing rules. If nothing has changed, it writes nothing.
func (n *Network) SetPorts(ctx context.Context, id string, addrs []netip.Addr, ports []PortMapping) error {
	var rules []portRule
	for _, p := range ports {
		if p.HostPort == 0 {
			continue
		}
		switch p.Protocol {
		case "tcp", "udp", "sctp":
		default:
			return fmt.Errorf("unknown protocol %q of host port", p.Protocol)
		}
		for _, addr := range addrs {
			if p.HostIP.IsValid() && p.HostIP.Unmap().Is4() != addr.Is4() {
				continue
			}
			rules = append(rules, portRule{p, addr})
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	old := n.ports[id]
	if slices.Equal(old, rules) {
		return nil
	}
	if len(rules) == 0 {
		delete(n.ports, id)
	} else {
		n.ports[id] = rules
	}
	for _, family := range []packetfilter.Family{packetfilter.IPv4, packetfilter.IPv6} {
		if !slices.ContainsFunc(append(slices.Clone(old), rules...), func(r portRule) bool { return familyOf(r.pod) == family }) {
			continue
		}
		if err := n.writer.Replace(ctx, family, n.portRules(family)); err != nil {
			return fmt.Errorf("writing host port rules: %w", err)
		}
	}
	n.forgetFlows(append(slices.Clone(old), rules...))
	return nil
}

// portRules returns the chains with the rules of all host ports of a family. The caller must hold
// n.mu, because it reads n.ports.
func (n *Network) portRules(family packetfilter.Family) packetfilter.Chains {
	var translate, masquerade []packetfilter.Rule
	for _, id := range slices.Sorted(maps.Keys(n.ports)) {
		for _, r := range n.ports[id] {
			if familyOf(r.pod) != family {
				continue
			}
			rule := packetfilter.Rule{
				Protocol: r.Protocol, Ports: packetfilter.Ports{First: r.HostPort}, Target: packetfilter.DNAT, To: netip.AddrPortFrom(r.pod, r.PodPort),
			}
			if r.HostIP.IsValid() && !r.HostIP.IsUnspecified() {
				rule.Dst = packetfilter.Is(r.HostIP.Unmap())
			} else if family == packetfilter.IPv6 {
				// There is no route from ::1 to a pod, so connections to ::1 must fail immediately.
				rule.Dst = packetfilter.NotIn(netip.MustParsePrefix("::1/128"))
			}
			translate = append(translate, rule)
			// Masquerade connections of the pod to itself through the host port, and connections
			// from the host's loopback addresses, which are not routable in the pod.
			sources := []packetfilter.Addresses{packetfilter.Is(r.pod)}
			if r.pod.Is4() {
				sources = append(sources, packetfilter.In(netip.MustParsePrefix("127.0.0.0/8")))
			}
			for _, source := range sources {
				masquerade = append(masquerade, packetfilter.Rule{
					Src: source, Dst: packetfilter.Is(r.pod), Protocol: r.Protocol, Ports: packetfilter.Ports{First: r.PodPort}, Target: packetfilter.Masquerade,
				})
			}
		}
	}
	return packetfilter.Chains{nat(chainHostPorts): translate, nat(chainHostPortsSN): masquerade}
}

// forgetFlows deletes the conntrack entries of UDP flows to the host ports in rules, which were
// added or removed, because packets of existing flows bypass new rules.
func (n *Network) forgetFlows(rules []portRule) {
	for _, r := range rules {
		if r.Protocol != "udp" {
			continue
		}
		filter := &netlink.ConntrackFilter{}
		family := netlink.InetFamily(unix.AF_INET)
		if r.pod.Is6() {
			family = unix.AF_INET6
		}
		if filter.AddProtocol(unix.IPPROTO_UDP) != nil || filter.AddPort(netlink.ConntrackOrigDstPort, r.HostPort) != nil {
			continue
		}
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter); err != nil {
			n.log.Warn("deleting conntrack entries of old UDP flows to host port failed; packets of these flows may not reach the pod until the entries expire, no retry", "hostPort", r.HostPort, "podIP", r.pod, "err", err)
		}
	}
}
