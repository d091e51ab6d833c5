package network

import (
	"net/netip"
	"slices"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// wireGuardPeer is a key with which another node sends and receives encrypted packets.
type wireGuardPeer struct {
	key      wgtypes.Key
	endpoint netip.AddrPort
	// allowed are the destinations to which packets are encrypted with the key, and the only sources from which packets
	// with the key are accepted.
	allowed []netip.Prefix
}

// makeEncryptedPlan decides how self reaches the pods of its peers through the WireGuard link. The kernel rejects packets
// to pods of peers that have not published a key, and to other addresses in podCIDRs, the ranges of all pods, so that
// no packet leaves the node unencrypted. If two peers publish the same key, the one whose name sorts first has it.
func makeEncryptedPlan(self member, peers []member, podCIDRs []netip.Prefix) plan {
	p := plan{encrypted: true}
	taken := map[wgtypes.Key]bool{}
	add := func(text string, endpoint netip.AddrPort, allowed []netip.Prefix) bool {
		key, err := wgtypes.ParseKey(text)
		if err != nil || taken[key] {
			return false
		}
		taken[key] = true
		p.peers = append(p.peers, wireGuardPeer{key: key, endpoint: endpoint, allowed: allowed})
		return true
	}
	for _, cidr := range podCIDRs {
		p.routes = append(p.routes, route{dst: cidr.Masked(), unreachable: true})
	}
	peers = slices.Clone(peers)
	slices.SortFunc(peers, func(a, b member) int { return strings.Compare(a.name, b.name) })
	for _, peer := range peers {
		if peer.name == self.name || len(peer.cidrs) == 0 {
			continue
		}
		address := sharedSubnetAddress(self.subnets, peer.subnets, self.address.Is4())
		if !address.IsValid() {
			address = peer.address
		}
		endpoint := netip.AddrPortFrom(address, wireGuardPort)
		reachable := address.IsValid() && add(peer.keys.Key, endpoint, peer.cidrs)
		if reachable && peer.keys.Next != "" {
			add(peer.keys.Next, endpoint, nil)
		}
		for _, cidr := range peer.cidrs {
			p.routes = append(p.routes, route{dst: cidr, tunnel: reachable, unreachable: !reachable})
		}
	}
	slices.SortFunc(p.routes, func(a, b route) int { return a.dst.Compare(b.dst) })
	return p
}
