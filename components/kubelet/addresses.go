package kubelet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/netdump"
)

// nodeIPs finds the node's addresses: those of the default route's interface;
// without one, the first global address there is.
func nodeIPs() ([]netip.Addr, error) {
	var out []netip.Addr
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if ip := byDefaultRoute(family); ip.IsValid() {
			out = append(out, ip)
		}
	}
	if len(out) > 0 {
		return out, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing the node's addresses: %w", err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && usable(p.Addr()) {
			return []netip.Addr{p.Addr()}, nil
		}
	}
	return nil, errors.New("the node has no address: give one with --node-ip")
}

func usable(ip netip.Addr) bool { return ip.IsGlobalUnicast() && !ip.IsLoopback() }

func byDefaultRoute(family int) netip.Addr {
	routes, err := netdump.Routes(family)
	if err != nil {
		return netip.Addr{}
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() || r.LinkIndex == 0 {
			continue
		}
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		if src, ok := netip.AddrFromSlice(r.Src); ok && usable(src.Unmap()) {
			return src.Unmap()
		}
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil {
			continue
		}
		addrs, err := netdump.Addresses(link, family)
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && usable(ip.Unmap()) && a.Flags&unix.IFA_F_TEMPORARY == 0 {
				return ip.Unmap()
			}
		}
	}
	return netip.Addr{}
}
