package serviceip

import (
	"math/bits"
	"math/rand/v2"
	"net/netip"
)

// band is a range of addresses of which the lower part is left to those who
// name the address that they want, until the upper part is used up.
// See https://kubernetes.io/docs/concepts/services-networking/cluster-ip-allocation/
type band struct {
	prefix netip.Prefix
	// size is how many addresses can be used; the first is one after the
	// prefix's own. At most maxSize of a large range are used.
	size uint64
	// lower is how many of them are in the lower part.
	lower uint64
}

// maxSize bounds how much of an IPv6 range is used, and how long a search
// takes.
const maxSize = 1 << 20

func newBand(prefix netip.Prefix) band {
	hostBits := prefix.Addr().BitLen() - prefix.Bits()
	b := band{prefix: prefix, size: maxSize}
	if hostBits < bits.Len(maxSize) {
		total := uint64(1) << hostBits
		b.size = total - min(total, 1)
		if prefix.Addr().Is4() {
			// The last one is for broadcasts.
			b.size -= min(b.size, 1)
		}
		b.lower = part(total, 16, 256, 16)
	} else {
		b.lower = 256
	}
	b.lower = min(b.lower, b.size)
	return b
}

// part is upstream's rule for how large the lower part is: size/step within
// bounds, and none when the range is small.
func part(size, least, most, step uint64) uint64 {
	if size < least {
		return 0
	}
	return min(max(size/step, least), most)
}

// at returns the address of a number in [0, size).
func (b band) at(n uint64) netip.Addr {
	raw := b.prefix.Addr().As16()
	carry := n + 1
	for i := len(raw) - 1; carry > 0 && i >= 0; i-- {
		carry += uint64(raw[i])
		raw[i] = byte(carry)
		carry >>= 8
	}
	return netip.AddrFrom16(raw).Unmap()
}

// usable tells whether an address in the prefix may be given to a service. All
// of a large range are, those included that are never chosen at random.
func (b band) usable(addr netip.Addr) bool {
	if addr == b.prefix.Addr() {
		return false
	}
	if !addr.Is4() {
		return true
	}
	// The last of IPv4 has no successor in the prefix.
	return b.prefix.Contains(addr.Next()) && addr.Next().IsValid()
}

// choose returns a random address for which free is true, from the upper part
// as long as there is one. It returns false when there is none.
func (b band) choose(free func(netip.Addr) bool) (netip.Addr, bool) {
	if addr, ok := b.search(b.lower, b.size, free); ok {
		return addr, true
	}
	return b.search(0, b.lower, free)
}

// search looks at [from, to), beginning anywhere.
func (b band) search(from, to uint64, free func(netip.Addr) bool) (netip.Addr, bool) {
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
