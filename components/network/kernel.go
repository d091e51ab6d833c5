package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/hostchange"
	"hyperkube/internal/iptables"
	"hyperkube/internal/netdump"
)

const (
	// routeProtocol marks routes of this package, so that they are told from
	// all others.
	routeProtocol = 104
	// vni and vxlanPort name the tunnel on the wire. The port is IANA's.
	vni       = 4096
	vxlanPort = 4789
	// headers are the bytes that a tunnel adds to a packet, over IPv4 and
	// IPv6.
	headers4, headers6 = 50, 70

	chainNoMasq = "HK-NOMASQ"
	chainMSS    = "HK-TUNNEL"
)

// kernel brings plans to the kernel. It is used by one goroutine.
type kernel struct {
	bridge, tunnel string
	podCIDRs       []netip.Prefix
	journal        *hostchange.Journal

	// guard tells when others have removed rules.
	guard *iptables.Guard

	// written are the rules of each family as they were written last.
	written map[iptables.Family]string
}

// mss is what leads to the chain that bounds segments.
var mss = iptables.Jump{Table: "mangle", Chain: "POSTROUTING", To: chainMSS, Comment: "hyperkube tunnel"}

// lost forgets what was written of families that lack any of it, so that it is
// written again, and tells whether there was one.
func (k *kernel) lost(ctx context.Context) bool {
	any := false
	for family, rules := range k.written {
		saved, err := iptables.Save(ctx, family)
		if err == nil && iptables.Complete(saved, rules) && (!strings.Contains(rules, chainMSS) || mss.In(saved)) {
			continue
		}
		delete(k.written, family)
		any = true
	}
	return any
}

// apply makes the routes, tunnels and rules of p, and removes others of this
// package.
func (k *kernel) apply(ctx context.Context, self member, p plan) error {
	index := 0
	if len(p.tunnels) > 0 {
		link, err := k.ensureTunnel(self, p.hardware)
		if err != nil {
			return fmt.Errorf("making the tunnel: %w", err)
		}
		index = link.Attrs().Index
		if err := k.ensureEnds(index, p.tunnels); err != nil {
			return fmt.Errorf("making the ends of tunnels: %w", err)
		}
	} else if err := k.removeTunnel(); err != nil {
		return fmt.Errorf("removing the tunnel: %w", err)
	}
	if err := k.routes(index, p.routes); err != nil {
		return err
	}
	return k.rules(ctx, self, p)
}

// routes makes those that are missing and removes those that are too many.
func (k *kernel) routes(tunnel int, want []route) error {
	have, err := netdump.Whole(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return fmt.Errorf("listing routes: %w", err)
	}
	var errs []error
	for _, w := range want {
		r := &netlink.Route{Dst: netdump.IPNet(w.dst), Gw: w.via.AsSlice(), Protocol: routeProtocol}
		if w.tunnel {
			r.LinkIndex, r.Flags = tunnel, int(netlink.FLAG_ONLINK)
		} else {
			link, err := linkTo(w.via)
			if err != nil {
				errs = append(errs, fmt.Errorf("route to %s by %s: %w", w.dst, w.via, err))
				continue
			}
			r.LinkIndex = link
		}
		same := func(h netlink.Route) bool {
			return h.Dst != nil && netdump.Prefix(h.Dst) == w.dst && h.LinkIndex == r.LinkIndex && h.Gw.Equal(r.Gw)
		}
		if slices.ContainsFunc(have, same) {
			continue
		}
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err == nil {
			err = k.journal.Record(hostchange.Change{Kind: hostchange.Route, Name: w.dst.String(), Before: link.Attrs().Name})
		}
		if err == nil {
			err = netlink.RouteReplace(r)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("route to %s by %s: %w", w.dst, w.via, err))
		}
	}
	for _, h := range have {
		wanted := slices.ContainsFunc(want, func(w route) bool { return h.Dst != nil && netdump.Prefix(h.Dst) == w.dst })
		if wanted {
			continue // it was replaced
		}
		if err := netlink.RouteDel(&h); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("removing the route to %s: %w", h.Dst, err))
		}
	}
	return errors.Join(errs...)
}

// linkTo returns the link of whose subnet addr is.
func linkTo(addr netip.Addr) (int, error) {
	routes, err := netlink.RouteGet(addr.AsSlice())
	if err != nil {
		return 0, err
	}
	for _, r := range routes {
		if r.Gw == nil || r.Gw.IsUnspecified() {
			return r.LinkIndex, nil
		}
	}
	return 0, errors.New("it is not on a link of this node")
}

// ensureTunnel makes the link of the tunnel.
func (k *kernel) ensureTunnel(self member, hardware net.HardwareAddr) (netlink.Link, error) {
	overhead := headers4
	if self.address.Is6() {
		overhead = headers6
	}
	under, err := linkOf(self.address)
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = k.tunnel, under.Attrs().MTU-overhead, hardware
	want := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: vni, Port: vxlanPort, SrcAddr: self.address.AsSlice()}
	link, err := netlink.LinkByName(k.tunnel)
	if err == nil && !sameTunnel(link, want) {
		if err := netlink.LinkDel(link); err != nil {
			return nil, err
		}
		err = netlink.LinkNotFoundError{}
	}
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		if err := k.journal.Record(hostchange.Change{Kind: hostchange.Link, Name: k.tunnel}); err != nil {
			return nil, err
		}
		if err := netlink.LinkAdd(want); err != nil {
			return nil, err
		}
		link, err = netlink.LinkByName(k.tunnel)
	}
	if err != nil {
		return nil, err
	}
	// The node's own packets have an address to which answers come back the
	// same way.
	for _, cidr := range self.cidrs {
		a := netip.PrefixFrom(cidr.Addr(), cidr.Addr().BitLen())
		addr := &netlink.Addr{IPNet: netdump.IPNet(a)}
		if a.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return nil, fmt.Errorf("giving it address %s: %w", a, err)
		}
	}
	return link, netlink.LinkSetUp(link)
}

func sameTunnel(link netlink.Link, want *netlink.Vxlan) bool {
	have, ok := link.(*netlink.Vxlan)
	return ok && have.VxlanId == want.VxlanId && have.Port == want.Port && have.SrcAddr.Equal(want.SrcAddr) && !have.Learning &&
		have.MTU == want.MTU && have.HardwareAddr.String() == want.HardwareAddr.String()
}

func (k *kernel) removeTunnel() error {
	link, err := netlink.LinkByName(k.tunnel)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// ensureEnds tells the kernel, which learns nothing by itself here, where the
// ends of the tunnel are.
func (k *kernel) ensureEnds(link int, ends []tunnelEnd) error {
	var want []netlink.Neigh
	for _, e := range ends {
		want = append(want, netlink.Neigh{
			LinkIndex: link, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
			IP: e.address.AsSlice(), HardwareAddr: e.hardware,
		})
		for _, via := range e.vias {
			family := unix.AF_INET
			if via.Is6() {
				family = unix.AF_INET6
			}
			want = append(want, netlink.Neigh{
				LinkIndex: link, Family: family, State: netlink.NUD_PERMANENT, IP: via.AsSlice(), HardwareAddr: e.hardware,
			})
		}
	}
	var errs []error
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		have, err := netdump.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(link, family) })
		if err != nil {
			errs = append(errs, fmt.Errorf("listing neighbours: %w", err))
			continue
		}
		for _, h := range have {
			known := slices.ContainsFunc(want, func(w netlink.Neigh) bool { return sameNeigh(w, h, family) })
			if !known && h.State&netlink.NUD_PERMANENT != 0 && h.IP != nil && !h.IP.IsMulticast() {
				if err := netlink.NeighDel(&h); err != nil && !errors.Is(err, unix.ENOENT) {
					errs = append(errs, fmt.Errorf("removing neighbour %s: %w", h.IP, err))
				}
			}
		}
		for _, w := range want {
			if w.Family == family && !slices.ContainsFunc(have, func(h netlink.Neigh) bool { return sameNeigh(w, h, family) }) {
				if err := netlink.NeighSet(&w); err != nil {
					errs = append(errs, fmt.Errorf("adding neighbour %s: %w", w.IP, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}

func sameNeigh(want, have netlink.Neigh, family int) bool {
	return want.Family == family && want.IP.Equal(have.IP) && want.HardwareAddr.String() == have.HardwareAddr.String()
}

// rules keep packets to other nodes' pods from being masqueraded, and bound the
// segments of what goes through the tunnel to what fits.
func (k *kernel) rules(ctx context.Context, self member, p plan) error {
	for _, cidr := range self.cidrs {
		family := iptables.Of(cidr.Addr().Is6())
		var b strings.Builder
		b.WriteString("*nat\n:" + chainNoMasq + " - [0:0]\n")
		if len(p.routes) > 0 {
			for _, dst := range k.podRanges(p, cidr.Addr().Is6()) {
				fmt.Fprintf(&b, "-A %s -s %s -d %s ! -o %s -j ACCEPT\n", chainNoMasq, cidr, dst, k.bridge)
			}
		}
		b.WriteString("COMMIT\n")
		rules := b.String()
		if len(p.tunnels) > 0 {
			rules += fmt.Sprintf("*mangle\n:%s - [0:0]\n-A %s -o %s -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu\n",
				chainMSS, chainMSS, k.tunnel)
		}
		if k.written == nil {
			k.written = map[iptables.Family]string{}
		}
		if before, ok := k.written[family]; before == rules || !ok && len(p.routes) == 0 {
			continue
		}
		k.written[family] = rules
		if err := k.writeRules(ctx, family, rules, len(p.tunnels) > 0); err != nil {
			delete(k.written, family)
			return fmt.Errorf("writing the network's rules: %w", err)
		}
	}
	return nil
}

func (k *kernel) writeRules(ctx context.Context, family iptables.Family, rules string, tunnel bool) error {
	chain := func(table, name string) hostchange.Change {
		return hostchange.Change{Kind: hostchange.Chain, Name: fmt.Sprintf("%s %s %s", family, table, name)}
	}
	// HK-NOMASQ is in the journal of the runtime, whose chains lead there.
	if tunnel {
		if err := k.journal.Record(chain("mangle", chainMSS), mss.Change(family)); err != nil {
			return err
		}
		saved, err := iptables.Save(ctx, family)
		if err != nil {
			return err
		}
		if !mss.In(saved) {
			rules += mss.Insert() + "\n"
		}
		rules += "COMMIT\n"
	}
	return k.guard.Restore(ctx, family, rules)
}

// podRanges are the ranges of other nodes' pods: that of the cluster, if it is
// known, for it is one rule.
func (k *kernel) podRanges(p plan, is6 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, cidr := range k.podCIDRs {
		if cidr.Addr().Is6() == is6 {
			out = append(out, cidr.Masked())
		}
	}
	if len(out) > 0 {
		return out
	}
	for _, r := range p.routes {
		if r.dst.Addr().Is6() == is6 {
			out = append(out, r.dst)
		}
	}
	return out
}

// subnetsOf returns address with its subnet, and the addresses of links.
func subnetsOf(address netip.Addr, links []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	if own, err := linkOf(address); err == nil {
		addrs, err := netdump.Addresses(own, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("listing addresses: %w", err)
		}
		for _, a := range addrs {
			// Its address of the other family is on the same link.
			if p := netdump.Prefix(a.IPNet); p.Addr() == address || p.Addr().Is4() != address.Is4() && p.Addr().IsGlobalUnicast() {
				out = append(out, p)
			}
		}
	}
	if len(out) == 0 {
		out = append(out, netip.PrefixFrom(address, address.BitLen()))
	}
	for _, name := range links {
		link, err := netlink.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("finding link %s: %w", name, err)
		}
		addrs, err := netdump.Addresses(link, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("listing addresses: %w", err)
		}
		for _, a := range addrs {
			if p := netdump.Prefix(a.IPNet); p.Addr().IsGlobalUnicast() && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out, nil
}

// linkOf returns the link that has the address.
func linkOf(address netip.Addr) (netlink.Link, error) {
	addrs, err := netdump.Addresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range addrs {
		if netdump.Prefix(a.IPNet).Addr() == address {
			return netlink.LinkByIndex(a.LinkIndex)
		}
	}
	return nil, fmt.Errorf("no link of this node has address %s", address)
}
