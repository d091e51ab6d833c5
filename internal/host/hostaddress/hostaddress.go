// Package hostaddress finds the addresses at which other machines reach this machine.
package hostaddress

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/host/netlinkutil"
)

// Family returns the netlink family of an address, FAMILY_V4 or FAMILY_V6. An IPv4-mapped IPv6
// address is IPv4.
func Family(addr netip.Addr) int {
	if addr.Unmap().Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// Of returns this machine's address of a netlink family, or the zero Addr without an error if it
// has none. It is the source address of connections to other networks: the source of a default
// route, else an address of the route's links, else an address of the loopback link, because links
// may have no addresses (RFC 5549). Without a default route it is the first address of an ordinary
// link, then of a tunnel, then of the loopback link. Addresses of pod links are never returned.
func Of(family int) (netip.Addr, error) {
	m, err := readMachine(family)
	if err != nil {
		return netip.Addr{}, err
	}
	addr, _ := m.address()
	return addr, nil
}

// Resolve returns addr, or this machine's address of the same family if addr is unspecified (0.0.0.0 or ::). It returns
// an error if the machine has no such address.
func Resolve(addr netip.Addr) (netip.Addr, error) {
	if !addr.IsUnspecified() {
		return addr, nil
	}
	resolved, err := Of(Family(addr))
	if err == nil && !resolved.IsValid() {
		err = fmt.Errorf("machine has no address of the family of %v", addr)
	}
	return resolved, err
}

// Advertised returns the address at which other machines reach a server on this machine that
// listens on bind. It is bind, unless that is unspecified or a loopback address. Otherwise it is
// the machine's address, preferably of the family of bind if that has a default route, else of the
// other family. It is the zero Addr, without an error, if the machine has no address.
func Advertised(bind netip.Addr) (netip.Addr, error) {
	if bind = bind.Unmap(); !bind.IsUnspecified() && !bind.IsLoopback() {
		return bind, nil
	}
	families := []int{netlink.FAMILY_V4, netlink.FAMILY_V6}
	if bind.Is6() {
		slices.Reverse(families)
	}
	addrs, err := addresses(families)
	if err != nil || len(addrs) == 0 {
		return netip.Addr{}, err
	}
	return addrs[0], nil
}

// All returns one address per family that has a default route, IPv4 first. If no family has one, it
// returns one address of either family. It returns none if the machine has no address.
func All() ([]netip.Addr, error) { return addresses([]int{netlink.FAMILY_V4, netlink.FAMILY_V6}) }

// addresses returns one address for each of families that has a default route, in their order. If
// none has one, it returns one address of the first family that has any.
func addresses(families []int) ([]netip.Addr, error) {
	var routed, others []netip.Addr
	for _, family := range families {
		m, err := readMachine(family)
		if err != nil {
			return nil, err
		}
		switch addr, byRoute := m.address(); {
		case byRoute:
			routed = append(routed, addr)
		case addr.IsValid() && len(others) == 0:
			others = []netip.Addr{addr}
		}
	}
	if len(routed) > 0 {
		return routed, nil
	}
	return others, nil
}

// readMachine reads the routes, links and addresses of a netlink family from the kernel. The links are those of all
// families.
func readMachine(family int) (m machine, err error) {
	if m.routes, err = netlinkutil.Routes(family); err != nil {
		return m, fmt.Errorf("listing host routes: %w", err)
	}
	if m.links, err = netlinkutil.List(netlink.LinkList); err != nil {
		return m, fmt.Errorf("listing host links: %w", err)
	}
	if m.addrs, err = netlinkutil.Addresses(nil, family); err != nil {
		return m, fmt.Errorf("listing host addresses: %w", err)
	}
	return m, nil
}

// machine is the network configuration of the host for one address family.
type machine struct {
	routes []netlink.Route // of the main table
	links  []netlink.Link
	addrs  []netlink.Addr
}

// address returns the address that Of describes, or the zero Addr if there is none. byRoute reports
// whether the machine has a default route of the family.
func (m machine) address() (addr netip.Addr, byRoute bool) {
	loopback := m.linkAddress(func(l *netlink.LinkAttrs) bool { return l.Flags&net.FlagLoopback != 0 })
	if routes := m.defaults(); len(routes) > 0 {
		for _, r := range routes {
			if addr, ok := global(r.Src); ok {
				return addr, true
			}
			indexes := []int{r.LinkIndex}
			for _, hop := range r.MultiPath {
				indexes = append(indexes, hop.LinkIndex)
			}
			for _, index := range indexes {
				if addr := m.linkAddress(func(l *netlink.LinkAttrs) bool { return l.Index == index }); addr.IsValid() {
					return addr, true
				}
			}
		}
		if loopback.IsValid() {
			return loopback, true
		}
	}
	for _, kind := range []net.Flags{0, net.FlagPointToPoint} {
		if addr := m.linkAddress(func(l *netlink.LinkAttrs) bool {
			return l.Flags&(net.FlagLoopback|net.FlagPointToPoint) == kind && !strings.HasPrefix(l.Name, "hk")
		}); addr.IsValid() {
			return addr, false
		}
	}
	return loopback, false
}

// defaults returns the default routes in the kernel's order of preference, without those that reject packets
// ("unreachable default").
func (m machine) defaults() []netlink.Route {
	var out []netlink.Route
	for _, r := range m.routes {
		if r.Type != 0 && r.Type != unix.RTN_UNICAST {
			continue // for example "unreachable default"
		}
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(a, b netlink.Route) int { return cmp.Compare(a.Priority, b.Priority) })
	return out
}

// linkAddress returns the best address of the first link that is up, has an address and for which
// wanted returns true. It returns the zero Addr if there is none.
func (m machine) linkAddress(wanted func(*netlink.LinkAttrs) bool) netip.Addr {
	for _, link := range m.links {
		attrs := link.Attrs()
		if attrs.Flags&net.FlagUp == 0 || !wanted(attrs) {
			continue
		}
		var best netip.Addr
		rank := unusable
		for _, a := range m.addrs {
			if a.LinkIndex != attrs.Index || a.IPNet == nil {
				continue
			}
			addr, ok := global(a.IP)
			if r := rankOf(addr, a.Flags); ok && r < rank {
				best, rank = addr, r
			}
		}
		if best.IsValid() {
			return best
		}
	}
	return netip.Addr{}
}

// unusable is the rank of addresses that must not be used, because another machine already uses
// them.
const unusable = 4

// rankOf returns the rank of an address by its flags in netlink messages, 0 being the best.
// Tentative addresses rank lower, because another machine may use them too, then deprecated
// addresses, then temporary addresses of the privacy extensions.
func rankOf(addr netip.Addr, flags int) int {
	switch {
	case flags&unix.IFA_F_DADFAILED != 0:
		return unusable
	// For IPv4 this flag marks secondary addresses.
	case addr.Is6() && flags&unix.IFA_F_TEMPORARY != 0:
		return 3
	case flags&unix.IFA_F_DEPRECATED != 0:
		return 2
	case flags&unix.IFA_F_TENTATIVE != 0 && flags&unix.IFA_F_OPTIMISTIC == 0:
		return 1
	}
	return 0
}

// global returns the address of ip, and whether machines in other networks can reach it.
func global(ip net.IP) (netip.Addr, bool) {
	addr, ok := netip.AddrFromSlice(ip)
	addr = addr.Unmap()
	return addr, ok && addr.IsGlobalUnicast()
}
