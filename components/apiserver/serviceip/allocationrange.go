package serviceip

import (
	"math/bits"
	"math/rand/v2"
	"net/netip"
)

// allocationRange is a range of addresses for Services. Chosen addresses are from its upper part
// while that has free ones, so that users can request specific addresses in the lower part.
//
// https://kubernetes.io/docs/concepts/services-networking/cluster-ip-allocation/
type allocationRange struct {
	prefix netip.Prefix
	// size is the number of usable addresses. The first one follows the address of the prefix. At
	// most maxSize addresses of a large range are used.
	size uint64
	// lower is the number of addresses in the lower part.
	lower uint64
}

// maxSize is the maximum number of addresses that are used of a range, in both IP families. This
// also limits how many addresses a search for a free one examines.
const maxSize = 1 << 20

// newAllocationRange returns the range of a prefix. It excludes the prefix's own address and the IPv4 broadcast
// address. Of a large range it uses the first maxSize addresses.
func newAllocationRange(prefix netip.Prefix) allocationRange {
	hostBits := prefix.Addr().BitLen() - prefix.Bits()
	b := allocationRange{prefix: prefix, size: maxSize}
	if hostBits < bits.Len(maxSize) {
		total := uint64(1) << hostBits
		b.size = total - min(total, 1)
		if prefix.Addr().Is4() {
			// without the broadcast address
			b.size -= min(b.size, 1)
		}
		b.lower = reservedSize(total, 16, 256, 16)
	} else {
		b.lower = 256
	}
	b.lower = min(b.lower, b.size)
	return b
}

// reservedSize returns the size of the lower part of a range with size elements, which is kept for explicit requests,
// by upstream's rule: size/step, at least least and at most most, and zero if size is less than least.
func reservedSize(size, least, most, step uint64) uint64 {
	if size < least {
		return 0
	}
	return min(max(size/step, least), most)
}

// at returns the address of the range with the index n, which must be less than the size of the range.
func (b allocationRange) at(n uint64) netip.Addr {
	raw := b.prefix.Addr().As16()
	carry := n + 1
	for i := len(raw) - 1; carry > 0 && i >= 0; i-- {
		carry += uint64(raw[i])
		raw[i] = byte(carry)
		carry >>= 8
	}
	return netip.AddrFrom16(raw).Unmap()
}

// usable reports whether an address in the prefix may be allocated if a client requests it. For a
// large range this includes addresses after the first maxSize ones, which are never chosen.
func (b allocationRange) usable(addr netip.Addr) bool {
	if addr == b.prefix.Addr() {
		return false
	}
	if !addr.Is4() {
		return true
	}
	// The last IPv4 address has no successor in the prefix.
	return b.prefix.Contains(addr.Next()) && addr.Next().IsValid()
}

// choose returns a random address for which free returns true, from the upper part if possible. It
// returns false if no address is free.
func (b allocationRange) choose(free func(netip.Addr) bool) (netip.Addr, bool) {
	if addr, ok := b.search(b.lower, b.size, free); ok {
		return addr, true
	}
	return b.search(0, b.lower, free)
}

// search returns an address with an index in [from, to) for which free returns true. It starts at a
// random index and examines each address once.
func (b allocationRange) search(from, to uint64, free func(netip.Addr) bool) (netip.Addr, bool) {
	n := to - from
	if to <= from {
		return netip.Addr{}, false
	}
	start := rand.Uint64N(n)
	for i := range n {
		if addr := b.at(from + (start+i)%n); free(addr) {
			return addr, true
		}
	}
	return netip.Addr{}, false
}
