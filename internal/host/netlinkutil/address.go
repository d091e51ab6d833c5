package netlinkutil

import (
	"net"
	"net/netip"
)

// IPNet converts p to the type that the netlink package uses.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Prefix converts n to a netip.Prefix. The result is invalid if n has no address.
func Prefix(n *net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones)
}
