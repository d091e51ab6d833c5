package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/netlinkutil"
	"hyperkube/internal/host/packetfilter"
)

const (
	// routeProtocol marks the routes of this package.
	routeProtocol = 104
	// vni and vxlanPort identify the tunnel on the wire. The port is assigned by IANA.
	vni       = 4096
	vxlanPort = 4789
	// headers4 and headers6 are the bytes that a tunnel adds to a packet, over IPv4 and IPv6.
	headers4, headers6 = 50, 70

	chainNoMasq = "HK-NOMASQ"
	chainMSS    = "HK-TUNNEL"
)

var noMasq = packetfilter.Chain{Table: packetfilter.NAT, Name: chainNoMasq}

// kernel applies plans to the kernel of this node. It must be used by a single goroutine.
type kernel struct {
	bridge, tunnel string
	wireGuard      *wireGuard
	podCIDRs       []netip.Prefix
	journal        *hostjournal.Journal

	// writer writes the rules and detects that another process removed them.
	writer *packetfilter.Writer
}

// mssJump is the jump to the chain that clamps the TCP maximum segment size of connections through
// the tunnel.
var mssJump = packetfilter.Jump{
	From: packetfilter.Chain{Table: packetfilter.Mangle, Name: "POSTROUTING"}, Place: packetfilter.First,
	Rule: packetfilter.Rule{Comment: "hyperkube tunnel", Target: chainMSS},
}

// newWriter returns the packet filter writer for the rules of this package. HK-NOMASQ is in the
// journal of the container runtime, whose chains jump to it.
func newWriter(mode packetfilter.Mode, journal *hostjournal.Journal, log *slog.Logger) *packetfilter.Writer {
	return packetfilter.NewWriter(packetfilter.Config{
		Owner: "pod network routes", Foreign: []packetfilter.Chain{noMasq}, Guarded: []string{chainNoMasq, chainMSS}, Mode: mode, Journal: journal, Log: log,
	})
}

// apply creates the routes, the tunnel and the rules of p, and removes those of this package that p does not
// contain; without peers behind the tunnel, the tunnel is removed too. The WireGuard link of an encrypted plan must
// exist. self is this node.
func (k *kernel) apply(ctx context.Context, self member, p plan) error {
	index := 0
	if len(p.tunnels) > 0 {
		link, err := k.ensureTunnel(self, p.mac)
		if err != nil {
			return fmt.Errorf("creating the tunnel: %w", err)
		}
		index = link.Attrs().Index
		if err := k.ensureEndpoints(index, p.tunnels); err != nil {
			return fmt.Errorf("creating the tunnel endpoints: %w", err)
		}
	} else if err := removeLink(k.tunnel); err != nil {
		return fmt.Errorf("removing the tunnel: %w", err)
	}
	if p.encrypted {
		if err := k.wireGuard.commit(p.peers); err != nil {
			return err
		}
		link, err := netlink.LinkByName(k.wireGuard.link)
		if err != nil {
			return fmt.Errorf("finding link %s: %w", k.wireGuard.link, err)
		}
		index = link.Attrs().Index
	} else if err := removeLink(k.wireGuard.link); err != nil {
		return fmt.Errorf("removing the WireGuard link: %w", err)
	}
	if err := k.routes(index, p.routes); err != nil {
		return err
	}
	return k.writeRules(ctx, self, p)
}

// routes adds missing routes of want and removes other routes of this package. tunnel is the index
// of the tunnel link, or zero if there is none. It continues after errors and returns all of them.
func (k *kernel) routes(tunnel int, want []route) error {
	have, err := netlinkutil.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return fmt.Errorf("listing routes: %w", err)
	}
	var errs []error
	for _, w := range want {
		r := &netlink.Route{Dst: netlinkutil.IPNet(w.dst), Gw: w.gateway.AsSlice(), Protocol: routeProtocol, Type: unix.RTN_UNICAST}
		switch {
		case w.unreachable:
			r.Type = unix.RTN_UNREACHABLE
		case w.tunnel && w.gateway.IsValid():
			r.LinkIndex, r.Flags = tunnel, int(netlink.FLAG_ONLINK)
		case w.tunnel:
			r.LinkIndex, r.Scope = tunnel, netlink.SCOPE_LINK
		default:
			link, err := linkTo(w.gateway)
			if err != nil {
				errs = append(errs, fmt.Errorf("adding route to %s via %s: %w", w.dst, w.gateway, err))
				continue
			}
			r.LinkIndex = link
		}
		same := func(h netlink.Route) bool {
			// The kernel reports a link for unreachable destinations of IPv6.
			return h.Dst != nil && netlinkutil.Prefix(h.Dst) == w.dst && h.Type == r.Type && (w.unreachable || h.LinkIndex == r.LinkIndex && h.Gw.Equal(r.Gw))
		}
		if slices.ContainsFunc(have, same) {
			continue
		}
		if err := k.addRoute(r); err != nil {
			errs = append(errs, fmt.Errorf("adding route to %s via %s: %w", w.dst, w.gateway, err))
		}
	}
	for _, h := range have {
		desired := slices.ContainsFunc(want, func(w route) bool { return h.Dst != nil && netlinkutil.Prefix(h.Dst) == w.dst })
		if desired {
			continue // it was replaced
		}
		if err := netlink.RouteDel(&h); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("removing route to %s: %w", h.Dst, err))
		}
	}
	return errors.Join(errs...)
}

// addRoute records a route in the journal and adds it. It replaces a route to the same destination.
func (k *kernel) addRoute(r *netlink.Route) error {
	change := hostjournal.Change{Kind: hostjournal.Route, Name: r.Dst.String()}
	if r.Type != unix.RTN_UNREACHABLE {
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil {
			return err
		}
		change.Before = link.Attrs().Name
	}
	if err := k.journal.Record(change); err != nil {
		return err
	}
	return netlink.RouteReplace(r)
}

// linkTo returns the index of the link whose subnet contains addr. It returns an error if addr is
// only reachable through a gateway.
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
	return 0, errors.New("the address is not on a link of this node")
}

// ensureTunnel returns the VXLAN link. It creates the link if it does not exist, and replaces one
// with other settings. hardware is the MAC address of this node's tunnel endpoint.
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
	if link, err := netlink.LinkByName(k.tunnel); err == nil && !sameTunnel(link, want) {
		if err := netlink.LinkDel(link); err != nil {
			return nil, err
		}
	}
	return ensureLink(k.journal, want, self)
}

// ensureLink returns the tunnel link with the name of want. If it does not exist, ensureLink records it in the journal and
// creates want. It does not compare other attributes of an existing link. The link gets the addresses of the node and is
// set up.
func ensureLink(journal *hostjournal.Journal, want netlink.Link, self member) (netlink.Link, error) {
	name := want.Attrs().Name
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		if err := journal.Record(hostjournal.Change{Kind: hostjournal.Link, Name: name}); err != nil {
			return nil, err
		}
		if err := netlink.LinkAdd(want); err != nil {
			return nil, err
		}
		link, err = netlink.LinkByName(name)
	}
	if err != nil {
		return nil, err
	}
	if err := addNodeAddresses(link, self); err != nil {
		return nil, err
	}
	return link, netlink.LinkSetUp(link)
}

// addNodeAddresses gives a tunnel the first addresses of the pod CIDRs of this node. The node's own packets through the
// tunnel need a source address to which responses return through the tunnel.
func addNodeAddresses(link netlink.Link, self member) error {
	for _, cidr := range self.cidrs {
		a := netip.PrefixFrom(cidr.Addr(), cidr.Addr().BitLen())
		addr := &netlink.Addr{IPNet: netlinkutil.IPNet(a)}
		if a.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("adding address %s: %w", a, err)
		}
	}
	return nil
}

func sameTunnel(link netlink.Link, want *netlink.Vxlan) bool {
	have, ok := link.(*netlink.Vxlan)
	return ok && have.VxlanId == want.VxlanId && have.Port == want.Port && have.SrcAddr.Equal(want.SrcAddr) && !have.Learning &&
		have.MTU == want.MTU && have.HardwareAddr.String() == want.HardwareAddr.String()
}

// removeLink removes the link with the name, if it exists.
func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// ensureEndpoints makes the tunnel link, with the index link, send packets to the endpoints ends of
// other nodes, by FDB and neighbor entries. It removes stale entries. The link does not learn
// endpoints from packets.
func (k *kernel) ensureEndpoints(link int, ends []tunnelEndpoint) error {
	var want []netlink.Neigh
	for _, e := range ends {
		want = append(want, netlink.Neigh{
			LinkIndex: link, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
			IP: e.address.AsSlice(), HardwareAddr: e.mac,
		})
		for _, via := range e.gateways {
			family := unix.AF_INET
			if via.Is6() {
				family = unix.AF_INET6
			}
			want = append(want, netlink.Neigh{
				LinkIndex: link, Family: family, State: netlink.NUD_PERMANENT, IP: via.AsSlice(), HardwareAddr: e.mac,
			})
		}
	}
	var errs []error
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		have, err := netlinkutil.List(func() ([]netlink.Neigh, error) { return netlink.NeighList(link, family) })
		if err != nil {
			errs = append(errs, fmt.Errorf("listing neighbors: %w", err))
			continue
		}
		for _, h := range have {
			known := slices.ContainsFunc(want, func(w netlink.Neigh) bool { return sameNeigh(w, h, family) })
			if !known && h.State&netlink.NUD_PERMANENT != 0 && h.IP != nil && !h.IP.IsMulticast() {
				if err := netlink.NeighDel(&h); err != nil && !errors.Is(err, unix.ENOENT) {
					errs = append(errs, fmt.Errorf("removing neighbor %s: %w", h.IP, err))
				}
			}
		}
		for _, w := range want {
			if w.Family == family && !slices.ContainsFunc(have, func(h netlink.Neigh) bool { return sameNeigh(w, h, family) }) {
				if err := netlink.NeighSet(&w); err != nil {
					errs = append(errs, fmt.Errorf("adding neighbor %s: %w", w.IP, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}

func sameNeigh(want, have netlink.Neigh, family int) bool {
	return want.Family == family && want.IP.Equal(have.IP) && want.HardwareAddr.String() == have.HardwareAddr.String()
}

// writeRules writes the rules of p for each address family of this node's pods. It does
// nothing for a family without routes and without rules written before.
func (k *kernel) writeRules(ctx context.Context, self member, p plan) error {
	for _, cidr := range self.cidrs {
		family := packetfilter.FamilyOf(cidr.Addr().Is6())
		if len(p.routes) == 0 && !k.writer.Current(family) {
			continue
		}
		if err := k.writer.Sync(ctx, family, k.rules(cidr, p)); err != nil {
			return fmt.Errorf("writing pod network rules: %w", err)
		}
	}
	return nil
}

// rules returns the rules that exclude packets to pods of other nodes from masquerading and clamp the
// TCP maximum segment size of packets through the tunnel. cidr is the pod CIDR of this node in one
// address family.
func (k *kernel) rules(cidr netip.Prefix, p plan) packetfilter.Ruleset {
	set := packetfilter.Ruleset{Chains: packetfilter.Chains{noMasq: nil}}
	if len(p.routes) > 0 {
		for _, dst := range k.podRanges(p, cidr.Addr().Is6()) {
			set.Chains[noMasq] = append(set.Chains[noMasq], packetfilter.Rule{
				Src: packetfilter.In(cidr), Dst: packetfilter.In(dst), Out: packetfilter.Link{Name: k.bridge, Not: true}, Target: packetfilter.Accept,
			})
		}
	}
	if p.tunnel() {
		link := k.tunnel
		if p.encrypted {
			link = k.wireGuard.link
		}
		set.Chains[packetfilter.Chain{Table: packetfilter.Mangle, Name: chainMSS}] = []packetfilter.Rule{
			{Out: packetfilter.Link{Name: link}, Protocol: "tcp", SYN: true, Target: packetfilter.ClampMSS},
		}
		set.Jumps = []packetfilter.Jump{mssJump}
	}
	return set
}

// podRanges returns the address ranges of pods on other nodes in one IP family: the pod CIDR of the
// cluster if it is configured, which needs a single rule, and otherwise the destinations of the
// routes of p.
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

// subnetsOf returns the addresses, with the prefix lengths of their subnets, at which other nodes can reach
// this node directly: address itself, the global addresses of the other family on the same link, and the global
// addresses of links. If no link has address, its subnet is the address alone. Missing links are ignored.
func subnetsOf(address netip.Addr, links []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	if nodeLink, err := linkOf(address); err == nil {
		addrs, err := netlinkutil.Addresses(nodeLink, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("listing addresses: %w", err)
		}
		for _, a := range addrs {
			// The node's address of the other family is on the same link.
			if p := netlinkutil.Prefix(a.IPNet); p.Addr() == address || p.Addr().Is4() != address.Is4() && p.Addr().IsGlobalUnicast() {
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
		addrs, err := netlinkutil.Addresses(link, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("listing addresses: %w", err)
		}
		for _, a := range addrs {
			if p := netlinkutil.Prefix(a.IPNet); p.Addr().IsGlobalUnicast() && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out, nil
}

// linkOf returns the link of this node that has address, or an error if none has it.
func linkOf(address netip.Addr) (netlink.Link, error) {
	addrs, err := netlinkutil.Addresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range addrs {
		if netlinkutil.Prefix(a.IPNet).Addr() == address {
			return netlink.LinkByIndex(a.LinkIndex)
		}
	}
	return nil, fmt.Errorf("no link of this node has address %s", address)
}
