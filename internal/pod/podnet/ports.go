package podnet

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/host/iptables"
)

// PortMapping maps a host port to a port of a pod.
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

// SetPorts replaces the host ports of a pod; an empty list removes them. It writes the rules of all
// pods together, which also restores missing rules.
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
	for _, family := range []string{"4", "6"} {
		if !slices.ContainsFunc(append(slices.Clone(old), rules...), func(r portRule) bool { return familyOf(r.pod) == family }) {
			continue
		}
		var b strings.Builder
		fmt.Fprintf(&b, "*nat\n:%s - [0:0]\n:%s - [0:0]\n", chainHostPorts, chainHostPortsSN)
		n.writePorts(&b, family)
		b.WriteString("COMMIT\n")
		if err := n.guard.Restore(ctx, iptables.Family(family), b.String()); err != nil {
			return fmt.Errorf("writing host port rules: %w", err)
		}
	}
	n.forgetFlows(append(slices.Clone(old), rules...))
	return nil
}

// writePorts appends the rules of all host ports of a family.
func (n *Network) writePorts(b *strings.Builder, family string) {
	for _, id := range slices.Sorted(maps.Keys(n.ports)) {
		for _, r := range n.ports[id] {
			if familyOf(r.pod) != family {
				continue
			}
			to := ""
			if r.HostIP.IsValid() && !r.HostIP.IsUnspecified() {
				to = " -d " + r.HostIP.Unmap().String()
			} else if family == "6" {
				// There is no route from ::1 to a pod, so connections to ::1 must fail immediately.
				to = " ! -d ::1/128"
			}
			fmt.Fprintf(b, "-A %s%s -p %s -m %s --dport %d -j DNAT --to-destination %s\n",
				chainHostPorts, to, r.Protocol, r.Protocol, r.HostPort, netip.AddrPortFrom(r.pod, r.PodPort))
			// Masquerade connections of the pod to itself through the host port, and connections
			// from the host's loopback addresses, which are not routable in the pod.
			sources := []string{r.pod.String()}
			if r.pod.Is4() {
				sources = append(sources, "127.0.0.0/8")
			}
			for _, source := range sources {
				fmt.Fprintf(b, "-A %s -s %s -d %s -p %s -m %s --dport %d -j MASQUERADE\n",
					chainHostPortsSN, source, r.pod, r.Protocol, r.Protocol, r.PodPort)
			}
		}
	}
}

// forgetFlows deletes the conntrack entries of UDP flows to changed ports, because existing entries
// bypass new rules.
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
			n.log.Warn("deleting conntrack entries of old UDP flows to host port failed", "port", r.HostPort, "err", err)
		}
	}
}
