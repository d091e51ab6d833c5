// Package hostaddress finds by which addresses others know this machine.
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

	"hyperkube/internal/netdump"
)

// Family is the family of an address, as netlink counts them.
func Family(addr netip.Addr) int {
	if addr.Unmap().Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// Of returns this machine's address of a family of netlink's; none, which is no error, if
// it has none. It is the one with which the machine goes to the rest of the world: that of
// a default route, else of the links that it leads through, else of the loopback link, for
// links may be without addresses of their own (RFC 5549). A machine without a default route
// is known by the first address of an ordinary link, then of a tunnel, then of the loopback
// link; never by that of a link of the pods.
func Of(family int) (netip.Addr, error) {
	m, err := look(family)
	if err != nil {
		return netip.Addr{}, err
	}
	addr, _ := m.address()
	return addr, nil
}

// Meant is the address that one who was given stands for: an unspecified one, 0.0.0.0 or
// ::, for this machine's of that family, any other for itself.
func Meant(given netip.Addr) (netip.Addr, error) {
	if !given.IsUnspecified() {
		return given, nil
	}
	own, err := Of(Family(given))
	if err == nil && !own.IsValid() {
		err = fmt.Errorf("this machine has no address of the family of %v", given)
	}
	return own, err
}

// Advertised is the address at which others reach a server of this machine that listens at
// bind: that address, unless it is unspecified or of the machine alone. Then it is the
// machine's, of the family of bind if a default route of that leads anywhere, else of the
// other; none, which is no error, if the machine has none.
func Advertised(bind netip.Addr) (netip.Addr, error) {
	if bind = bind.Unmap(); !bind.IsUnspecified() && !bind.IsLoopback() {
		return bind, nil
	}
	families := []int{netlink.FAMILY_V4, netlink.FAMILY_V6}
	if bind.Is6() {
		slices.Reverse(families)
	}
	own, err := known(families)
	if err != nil || len(own) == 0 {
		return netip.Addr{}, err
	}
	return own[0], nil
}

// All are the addresses of those families of which a default route leads anywhere, IPv4
// first; where none does, the one address of either; none if there is none.
func All() ([]netip.Addr, error) { return known([]int{netlink.FAMILY_V4, netlink.FAMILY_V6}) }

// known is All of the families, in their order.
func known(families []int) ([]netip.Addr, error) {
	var routed, others []netip.Addr
	for _, family := range families {
		m, err := look(family)
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

func look(family int) (m machine, err error) {
	if m.routes, err = netdump.Routes(family); err != nil {
		return m, fmt.Errorf("listing the host's routes: %w", err)
	}
	if m.links, err = netdump.Whole(netlink.LinkList); err != nil {
		return m, fmt.Errorf("listing the host's links: %w", err)
	}
	if m.addrs, err = netdump.Addresses(nil, family); err != nil {
		return m, fmt.Errorf("listing the host's addresses: %w", err)
	}
	return m, nil
}

// machine is what the kernel tells of one family.
type machine struct {
	routes []netlink.Route // of the main table
	links  []netlink.Link
	addrs  []netlink.Addr
}

// address also tells whether it is the one that a default route leads through.
func (m machine) address() (addr netip.Addr, byRoute bool) {
	loopback := m.through(func(l *netlink.LinkAttrs) bool { return l.Flags&net.FlagLoopback != 0 })
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
				if addr := m.through(func(l *netlink.LinkAttrs) bool { return l.Index == index }); addr.IsValid() {
					return addr, true
				}
			}
		}
		if loopback.IsValid() {
			return loopback, true
		}
	}
	for _, odd := range []net.Flags{0, net.FlagPointToPoint} {
		if addr := m.through(func(l *netlink.LinkAttrs) bool {
			return l.Flags&(net.FlagLoopback|net.FlagPointToPoint) == odd && !strings.HasPrefix(l.Name, "hk")
		}); addr.IsValid() {
			return addr, false
		}
	}
	return loopback, false
}

// defaults are the routes to everywhere, those that the kernel prefers first.
func (m machine) defaults() []netlink.Route {
	var out []netlink.Route
	for _, r := range m.routes {
		if r.Type != 0 && r.Type != unix.RTN_UNICAST {
			continue // such as "unreachable default"
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

// through returns the address of the first of those links that is up and has any; none if
// none has.
func (m machine) through(wanted func(*netlink.LinkAttrs) bool) netip.Addr {
	for _, link := range m.links {
		attrs := link.Attrs()
		if attrs.Flags&net.FlagUp == 0 || !wanted(attrs) {
			continue
		}
		var best netip.Addr
		rank := unfit
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

// unfit is the rank of addresses that nobody can be known by.
const unfit = 4

// rankOf tells how well a machine can be known by an address with those flags, 0 the best:
// worse while nobody knows whether another has it too, worse when it is on its way out, and
// worst when privacy extensions have made it for a while.
func rankOf(addr netip.Addr, flags int) int {
	switch {
	case flags&unix.IFA_F_DADFAILED != 0:
		return unfit
	// Of IPv4 the flag says that it is the second address of a network.
	case addr.Is6() && flags&unix.IFA_F_TEMPORARY != 0:
		return 3
	case flags&unix.IFA_F_DEPRECATED != 0:
		return 2
	case flags&unix.IFA_F_TENTATIVE != 0 && flags&unix.IFA_F_OPTIMISTIC == 0:
		return 1
	}
	return 0
}

// global is the address of ip if machines elsewhere can reach it.
func global(ip net.IP) (netip.Addr, bool) {
	addr, ok := netip.AddrFromSlice(ip)
	addr = addr.Unmap()
	return addr, ok && addr.IsGlobalUnicast()
}
