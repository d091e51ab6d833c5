package network

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/internal/pod/netannotation"
)

// Mode selects how nodes reach each other's pods.
type Mode string

// The modes of --pod-network.
const (
	// Auto uses direct routes to nodes on the same subnet and tunnels to others.
	Auto Mode = "auto"
	// VXLAN uses tunnels to all nodes.
	VXLAN Mode = "vxlan"
	// Direct uses direct routes to nodes on the same subnet. Routes to other nodes must be
	// configured outside the cluster.
	Direct Mode = "direct"
	// WireGuard uses encrypted tunnels to all nodes. All nodes must use it: a node does not send to
	// pods of nodes without a key.
	WireGuard Mode = "wireguard"
)

// Validate returns an error if the mode is unknown. Empty means Auto.
func (m Mode) Validate() error {
	switch m {
	case "", Auto, VXLAN, Direct, WireGuard:
		return nil
	}
	return fmt.Errorf("unknown pod network mode %q: must be auto, vxlan, direct or wireguard", string(m))
}

// Check returns an error if the mode is unknown or the kernel does not support it. It needs root.
func (m Mode) Check() error {
	if err := m.Validate(); err != nil || m != WireGuard {
		return err
	}
	return checkWireGuard()
}

// member is a node of the pod network: the fields of its Node object that routes depend on.
type member struct {
	name string
	// cidrs are its pod CIDRs.
	cidrs []netip.Prefix
	// address is its internal IP address.
	address netip.Addr
	// subnets are its published addresses with their subnets.
	subnets []netip.Prefix
	// keys are its published keys.
	keys netannotation.WireGuardKeys
}

func (m member) equal(o member) bool {
	return m.name == o.name && m.address == o.address && m.keys == o.keys && slices.Equal(m.cidrs, o.cidrs) && slices.Equal(m.subnets, o.subnets)
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
	m.subnets = netannotation.ParseAddresses(node.Annotations[netannotation.Addresses])
	m.keys = netannotation.ParseWireGuard(node.Annotations[netannotation.WireGuard])
	return m
}

// route is a route to the pods of another node.
type route struct {
	dst     netip.Prefix // pod CIDR of the other node
	gateway netip.Addr   // invalid for the WireGuard link
	// tunnel selects the link of the tunnel. Otherwise the link through which gateway is reachable is used.
	tunnel bool
	// unreachable makes the kernel reject packets. The other fields except dst are unused.
	unreachable bool
}

// tunnelEndpoint is another node's end of the tunnel, to which this node sends encapsulated
// packets.
type tunnelEndpoint struct {
	mac      net.HardwareAddr
	address  netip.Addr   // of the node
	gateways []netip.Addr // gateways of the routes
}

// plan contains all routes and tunnel endpoints that a node needs to reach pods of other nodes.
type plan struct {
	routes  []route
	tunnels []tunnelEndpoint
	// mac is the MAC address of this node's tunnel endpoint.
	mac net.HardwareAddr
	// encrypted is set if the tunnel is the WireGuard link. Its peers replace tunnels.
	encrypted bool
	peers     []wireGuardPeer
}

// tunnel reports whether the plan contains a tunnel of any kind.
func (p *plan) tunnel() bool { return p.encrypted || len(p.tunnels) > 0 }

// makePlan decides how self reaches the pods of its peers: in a shared subnet directly, otherwise through the
// tunnel. Mode VXLAN uses only the tunnel, and mode Direct none, so that peers in other subnets have no route.
// Peers that have not published their addresses or pod CIDRs are omitted. Both nodes of a pair decide the same,
// because they use the same data about each other.
func makePlan(self member, peers []member, mode Mode) plan {
	ends := macAddresses(append(slices.Clone(peers), self))
	p := plan{mac: ends[self.name]}
	for _, peer := range peers {
		if peer.name == self.name || len(peer.cidrs) == 0 || len(peer.subnets) == 0 {
			continue // the node has not published its addresses yet
		}
		end := tunnelEndpoint{mac: ends[peer.name], address: peer.address}
		for _, cidr := range peer.cidrs {
			if via := sharedSubnetAddress(self.subnets, peer.subnets, cidr.Addr().Is4()); via.IsValid() && mode != VXLAN {
				p.routes = append(p.routes, route{dst: cidr, gateway: via})
			} else if mode != Direct && peer.address.IsValid() && self.address.IsValid() && peer.address.Is4() == self.address.Is4() {
				base := cidr.Addr()
				p.routes = append(p.routes, route{dst: cidr, gateway: base, tunnel: true})
				end.gateways = append(end.gateways, base)
			}
		}
		if len(end.gateways) > 0 {
			p.tunnels = append(p.tunnels, end)
		}
	}
	slices.SortFunc(p.routes, func(a, b route) int { return a.dst.Compare(b.dst) })
	slices.SortFunc(p.tunnels, func(a, b tunnelEndpoint) int { return bytes.Compare(a.mac, b.mac) })
	return p
}

// sharedSubnetAddress returns the address of peer in a subnet that both nodes are in, or an invalid
// address if there is none. v4 selects the IP family. If both have the same address in a subnet,
// these are two separate subnets, each private to its machine.
func sharedSubnetAddress(self, peer []netip.Prefix, v4 bool) netip.Addr {
	for _, p := range peer {
		if p.Addr().Is4() != v4 {
			continue
		}
		for _, o := range self {
			if o.Masked() == p.Masked() && o.Addr() != p.Addr() {
				return p.Addr()
			}
		}
	}
	return netip.Addr{}
}

// macAddresses returns the MAC addresses of the tunnel endpoints of members, by node name. All
// nodes compute the same result from the same names: if two names have the same hash, the name that
// sorts later gets another address.
func macAddresses(members []member) map[string]net.HardwareAddr {
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.name
	}
	slices.Sort(names)
	out, taken := map[string]net.HardwareAddr{}, map[[4]byte]bool{}
	for _, name := range slices.Compact(names) {
		text := name
		end := macSuffix(text)
		for taken[end] {
			// Node names cannot contain this character.
			text += "+"
			end = macSuffix(text)
		}
		taken[end] = true
		out[name] = append(net.HardwareAddr{0x0a, 0x5b}, end[:]...)
	}
	return out
}

// macSuffix returns the last four bytes of a MAC address, a hash of text.
func macSuffix(text string) [4]byte {
	sum := sha256.Sum256([]byte(text))
	return [4]byte(sum[:4])
}
