package announce

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/host/netlinkutil"
)

// link is a link of the node on which addresses can be announced.
type link struct {
	index    int
	running  bool // has a carrier
	mac      net.HardwareAddr
	prefixes []netip.Prefix // addresses with their subnets
}

// equal reports whether a responder of l also serves o.
func (l link) equal(o link) bool { return l.index == o.index && bytes.Equal(l.mac, o.mac) }

// readLinks returns the Ethernet links of this network namespace that have addresses, except those with one of the
// names in ignored.
func readLinks(ignored []string) ([]link, error) {
	all, err := netlinkutil.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	addresses, err := netlinkutil.Addresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	var out []link
	for _, one := range all {
		attrs := one.Attrs()
		if attrs.EncapType != "ether" || len(attrs.HardwareAddr) != 6 || slices.Contains(ignored, attrs.Name) {
			continue
		}
		l := link{index: attrs.Index, running: attrs.RawFlags&unix.IFF_RUNNING != 0, mac: attrs.HardwareAddr}
		for _, a := range addresses {
			if p := netlinkutil.Prefix(a.IPNet); a.LinkIndex == attrs.Index && p.Addr().IsGlobalUnicast() {
				l.prefixes = append(l.prefixes, p)
			}
		}
		if len(l.prefixes) > 0 {
			out = append(out, l)
		}
	}
	return out, nil
}

// place returns the addresses to announce on each link, by the index of the link. An address is announced on the links
// whose subnet contains it. If there is none, it is announced on the links that have an address of the node, because
// a router may have a route for the address.
func place(addresses []netip.Addr, links []link, node []netip.Addr) map[int][]netip.Addr {
	out := map[int][]netip.Addr{}
	for _, a := range addresses {
		found := false
		for _, l := range links {
			if slices.ContainsFunc(l.prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
				out[l.index], found = append(out[l.index], a), true
			}
		}
		if found {
			continue
		}
		for _, l := range links {
			if slices.ContainsFunc(l.prefixes, func(p netip.Prefix) bool { return slices.Contains(node, p.Addr()) }) {
				out[l.index] = append(out[l.index], a)
			}
		}
	}
	return out
}
