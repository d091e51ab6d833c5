package network

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// annotationAddresses of a Node lists, separated by commas, the addresses at
// which other nodes reach it directly, each with the length of its subnet's
// prefix, as in "192.0.2.7/24".
const annotationAddresses = "network.hyperkube.io/addresses"

// Mode is how nodes reach each other's pods.
type Mode string

// The modes there are.
const (
	// Auto routes to nodes of the same subnet and tunnels to others.
	Auto Mode = "auto"
	// VXLAN tunnels to all.
	VXLAN Mode = "vxlan"
	// Direct routes to nodes of the same subnet and does not reach others,
	// whose routes somebody else makes.
	Direct Mode = "direct"
)

// Validate tells whether it is one of them; empty is Auto.
func (m Mode) Validate() error {
	switch m {
	case "", Auto, VXLAN, Direct:
		return nil
	}
	return fmt.Errorf("unknown mode %q of the pod network: auto, vxlan and direct are known", string(m))
}

// member is what matters of a Node.
type member struct {
	name string
	// cidrs are those of its pods.
	cidrs []netip.Prefix
	// address is the one that it is known by.
	address netip.Addr
	// subnets are its addresses with their subnets.
	subnets []netip.Prefix
}

func (m member) equal(o member) bool {
	return m.name == o.name && m.address == o.address && slices.Equal(m.cidrs, o.cidrs) && slices.Equal(m.subnets, o.subnets)
}

func memberOf(node *corev1.Node) member {
	m := member{name: node.Name}
	texts := node.Spec.PodCIDRs
	if len(texts) == 0 && node.Spec.PodCIDR != "" {
		texts = []string{node.Spec.PodCIDR}
	}
	for _, text := range texts {
		if cidr, err := netip.ParsePrefix(text); err == nil {
			m.cidrs = append(m.cidrs, cidr.Masked())
		}
	}
	for _, a := range node.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP && !m.address.IsValid() {
			m.address = addr.Unmap()
		}
	}
	m.subnets = parseSubnets(node.Annotations[annotationAddresses])
	return m
}

func parseSubnets(text string) []netip.Prefix {
	var out []netip.Prefix
	for one := range strings.SplitSeq(text, ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(one)); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func formatSubnets(subnets []netip.Prefix) string {
	texts := make([]string, len(subnets))
	for i, p := range subnets {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

// route leads to the pods of another node.
type route struct {
	dst netip.Prefix
	via netip.Addr
	// tunnel: by the tunnel's link, else by the link that via is on.
	tunnel bool
}

// tunnelEnd is where a tunnel to another node ends.
type tunnelEnd struct {
	hardware net.HardwareAddr
	address  netip.Addr   // of the node
	vias     []netip.Addr // those of the routes
}

// plan is all that one node needs to reach the others' pods.
type plan struct {
	routes  []route
	tunnels []tunnelEnd
	// hardware is the node's own end of tunnels.
	hardware net.HardwareAddr
}

// makePlan decides how self reaches its peers. Both ends of a pair decide
// alike, for they know the same of each other.
func makePlan(self member, peers []member, mode Mode) plan {
	ends := hardwareAddrs(append(slices.Clone(peers), self))
	p := plan{hardware: ends[self.name]}
	for _, peer := range peers {
		if peer.name == self.name || len(peer.cidrs) == 0 || len(peer.subnets) == 0 {
			continue // it has not told yet how it is reached
		}
		end := tunnelEnd{hardware: ends[peer.name], address: peer.address}
		for _, cidr := range peer.cidrs {
			if via := neighbour(self.subnets, peer.subnets, cidr.Addr().Is4()); via.IsValid() && mode != VXLAN {
				p.routes = append(p.routes, route{dst: cidr, via: via})
			} else if mode != Direct && peer.address.IsValid() && self.address.IsValid() && peer.address.Is4() == self.address.Is4() {
				base := cidr.Addr()
				p.routes = append(p.routes, route{dst: cidr, via: base, tunnel: true})
				end.vias = append(end.vias, base)
			}
		}
		if len(end.vias) > 0 {
			p.tunnels = append(p.tunnels, end)
		}
	}
	slices.SortFunc(p.routes, func(a, b route) int { return a.dst.Compare(b.dst) })
	slices.SortFunc(p.tunnels, func(a, b tunnelEnd) int { return bytes.Compare(a.hardware, b.hardware) })
	return p
}

// neighbour returns the peer's address in a subnet that both are in; none if
// there is none. That both have the same address there means that these are
// two subnets, each behind its machine.
func neighbour(own, peer []netip.Prefix, v4 bool) netip.Addr {
	for _, p := range peer {
		if p.Addr().Is4() != v4 {
			continue
		}
		for _, o := range own {
			if o.Masked() == p.Masked() && o.Addr() != p.Addr() {
				return p.Addr()
			}
		}
	}
	return netip.Addr{}
}

// hardwareAddrs are the MACs of the ends of tunnels, by the nodes' names. All nodes
// come to the same, for they know the same names: where two would have one address,
// the name that is sorted later takes another.
func hardwareAddrs(members []member) map[string]net.HardwareAddr {
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.name
	}
	slices.Sort(names)
	out, taken := map[string]net.HardwareAddr{}, map[[4]byte]bool{}
	for _, name := range slices.Compact(names) {
		text := name
		end := hashed(text)
		for taken[end] {
			// No name of a node has such a character.
			text += "+"
			end = hashed(text)
		}
		taken[end] = true
		out[name] = append(net.HardwareAddr{0x0a, 0x5b}, end[:]...)
	}
	return out
}

// hashed is the part of an address that tells nodes apart.
func hashed(text string) [4]byte {
	sum := sha256.Sum256([]byte(text))
	return [4]byte(sum[:4])
}
