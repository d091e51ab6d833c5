package loadbalancer

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
)

// elect returns the node that announces the addresses of the Service with this UID; "" if no node can. It prefers, in
// this order, nodes in the subnets of the addresses, nodes that are ready and renew their Lease, nodes with endpoints
// if the Service requires local ones (local is then not nil), and nodes that are not stopping. If no node has a
// property, it is ignored.
//
// An address stays on its current node as long as that is one of the preferred nodes, because established connections
// break when it moves. Otherwise a hash of the UID and the name selects the node, which spreads the Services.
func elect(uid, current string, addresses []netip.Addr, nodes map[string]nodeState, local map[string]bool) string {
	usable := map[string]nodeState{}
	for name, s := range nodes {
		if !s.excluded {
			usable[name] = s
		}
	}
	usable = prefer(usable, func(_ string, s nodeState) bool { return s.reaches(addresses) })
	usable = prefer(usable, func(_ string, s nodeState) bool { return s.ready && !s.expired })
	if local != nil {
		usable = prefer(usable, func(name string, _ nodeState) bool { return local[name] })
	}
	usable = prefer(usable, func(_ string, s nodeState) bool { return !s.stopping })
	if _, ok := usable[current]; ok {
		return current
	}
	best, highest := "", uint64(0)
	for name := range usable {
		if w := weight(uid, name); best == "" || w > highest || w == highest && name < best {
			best, highest = name, w
		}
	}
	return best
}

// weight returns a pseudorandom number for a Service and a node. The node with the highest weight announces the
// Service, so that a change of other nodes does not affect it (rendezvous hashing).
func weight(uid, node string) uint64 {
	sum := sha256.Sum256([]byte(uid + "/" + node))
	return binary.BigEndian.Uint64(sum[:])
}

// reaches reports whether the node has published a subnet of each of the addresses.
func (s nodeState) reaches(addresses []netip.Addr) bool {
	return !slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		return !slices.ContainsFunc(s.subnets, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}
