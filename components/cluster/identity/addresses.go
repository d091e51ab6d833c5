package identity

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/components/cluster/command"
	"hyperkube/internal/netdump"
)

// NodeAddresses are those by which this machine's node is known: one of each
// family that the ranges of a cluster have, in the order of these; of what the
// machine has no address of, none. It is that of the default route's link, else
// the first global one.
//
// https://kubernetes.io/docs/concepts/services-networking/dual-stack/
func NodeAddresses(ranges []string) ([]netip.Addr, error) {
	families, err := familiesOf(ranges)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, family := range families {
		addr, err := addressOf(family)
		if err != nil {
			return nil, err
		}
		if addr.IsValid() {
			out = append(out, addr)
		}
	}
	return out, nil
}

// familiesOf returns the address families of ranges, each once; IPv4 if there
// are no ranges.
func familiesOf(ranges []string) ([]int, error) {
	var out []int
	for _, text := range ranges {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, command.ConfigError(fmt.Errorf("%q is no address range: %w", text, err))
		}
		if family := FamilyOf(prefix.Addr()); !slices.Contains(out, family) {
			out = append(out, family)
		}
	}
	if len(out) == 0 {
		out = []int{netlink.FAMILY_V4}
	}
	return out, nil
}

// FamilyOf is the family of an address, as netlink counts them.
func FamilyOf(addr netip.Addr) int {
	if addr.Unmap().Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// WithAddress puts first in front of those of the other family.
func WithAddress(first netip.Addr, others []netip.Addr) []netip.Addr {
	out := []netip.Addr{first}
	for _, a := range others {
		if FamilyOf(a) != FamilyOf(first) {
			out = append(out, a)
		}
	}
	return out
}

// addressOf returns this machine's address of a family; none if it has none.
func addressOf(family int) (netip.Addr, error) {
	routes, err := netdump.Routes(family)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("listing the host's routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		if src, ok := netip.AddrFromSlice(r.Src); ok && !src.IsUnspecified() {
			return src.Unmap(), nil
		}
		indexes := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
		for _, index := range indexes {
			link, err := netlink.LinkByIndex(index)
			if err != nil {
				continue
			}
			if addr, ok := globalAddress(link, family); ok {
				return addr, nil
			}
		}
	}
	links, err := netdump.Whole(netlink.LinkList)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("listing the host's links: %w", err)
	}
	for _, link := range links {
		if strings.HasPrefix(link.Attrs().Name, "hk") {
			continue
		}
		if addr, ok := globalAddress(link, family); ok {
			return addr, nil
		}
	}
	return netip.Addr{}, nil
}

// globalAddress is the first address of a link by which others may know it:
// not one that privacy extensions have made for a while.
func globalAddress(link netlink.Link, family int) (netip.Addr, bool) {
	addrs, err := netdump.Addresses(link, family)
	if err != nil {
		return netip.Addr{}, false
	}
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.IP)
		if ok && addr.Unmap().IsGlobalUnicast() && a.Flags&(unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED) == 0 {
			return addr.Unmap(), true
		}
	}
	return netip.Addr{}, false
}

// Texts are addresses as people write them.
func Texts(addrs []netip.Addr) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}
