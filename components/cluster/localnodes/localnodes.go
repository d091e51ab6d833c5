// Package localnodes creates the network of the additional nodes that `up --nodes` runs on one
// machine: a network namespace for each node, and a bridge that connects them with the host.
//
//	host: hk-nodes .1 ──┬── hkn1 ═ eth0 .2  namespace of the first additional node
//	                    └── hkn2 ═ eth0 .3  namespace of the second
//
// In a cluster with IPv6, all of them also have an IPv6 address.
//
// A namespace is held only by a bind mount in the run directory of its node, so it survives every
// process. All names derive from the layout. All operations are idempotent, and recorded in the
// host journal before they are carried out.
package localnodes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/netlinkutil"
	"hyperkube/internal/host/packetfilter"
)

// linkName is the name of a node's network interface in its namespace.
const linkName = "eth0"

// Network is the network that connects the nodes of one machine (`up --nodes N`): a bridge, and a network namespace
// for each additional node.
type Network struct {
	// Layout is the layout of the machine's first node, which runs in the host's network namespace.
	Layout layout.Node
	// Subnet and Subnet6 contain the IPv4 and IPv6 addresses of the bridge and the nodes. Subnet6
	// is the zero Prefix in a cluster without IPv6.
	Subnet, Subnet6 netip.Prefix
	// PodCIDRs are the pod CIDRs of the cluster.
	PodCIDRs []netip.Prefix
	// HostAddresses are the addresses of the machine's first node, at most one of each IP family. Traffic
	// from the host to additional nodes has them as source addresses.
	HostAddresses []netip.Addr
	// PacketFilter is how rules are written. Empty means packetfilter.IPTables.
	PacketFilter packetfilter.Mode
	// Journal records the changes to the host.
	Journal *hostjournal.Journal
}

// Bridge returns the name of the bridge that connects the nodes on this machine.
func Bridge(l layout.Node) string { return l.LinkPrefix + "-nodes" }

// veth returns the name of the host side of the i-th additional node's veth pair.
func veth(l layout.Node, i int) string { return l.LinkPrefix + "n" + strconv.Itoa(i) }

// Namespace returns the path of the i-th additional node's network namespace.
func Namespace(l layout.Node, i int) string { return filepath.Join(l.Numbered(i).Run, "netns") }

// Gateway returns the host's IPv4 address on the bridge, at which additional nodes reach the API server.
func (m *Network) Gateway() netip.Addr { return nthAddress(m.Subnet, 1) }

// Addresses returns the addresses of the i-th additional node: IPv4, then IPv6 if Subnet6 is set.
func (m *Network) Addresses(i int) []netip.Addr {
	var out []netip.Addr
	for _, subnet := range m.subnets() {
		out = append(out, nthAddress(subnet, i+1))
	}
	return out
}

// subnets returns Subnet, and Subnet6 if it is set.
func (m *Network) subnets() []netip.Prefix {
	if m.Subnet6.IsValid() {
		return []netip.Prefix{m.Subnet, m.Subnet6}
	}
	return []netip.Prefix{m.Subnet}
}

// nthAddress returns the n-th address of subnet.
func nthAddress(subnet netip.Prefix, n int) netip.Addr {
	addr := subnet.Masked().Addr()
	for range n {
		addr = addr.Next()
	}
	return addr
}

// changes returns the changes to the host that EnsureBridge makes and RemoveBridge reverts, for the host journal.
func (m *Network) changes() []hostjournal.Change {
	out := []hostjournal.Change{{Kind: hostjournal.Link, Name: Bridge(m.Layout)}}
	for _, subnet := range m.subnets() {
		out = append(out, m.rules(subnet).Changes(m.PacketFilter, packetfilter.FamilyOf(subnet.Addr().Is6()))...)
	}
	return out
}

// HasBridge reports whether the bridge exists.
func (m *Network) HasBridge() bool {
	_, err := netlink.LinkByName(Bridge(m.Layout))
	return err == nil
}

// RemoveBridge reverts the changes of EnsureBridge. Call it when no additional nodes are left. IP
// forwarding stays enabled, because pods also need it.
func (m *Network) RemoveBridge(ctx context.Context) error {
	// Delete the link first: without it, MaintainRules does not restore the rules.
	link, err := netlink.LinkByName(Bridge(m.Layout))
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("removing the node bridge: %w", err)
	}
	if err := hostjournal.Revert(ctx, m.changes(), packetfilter.Undo()); err != nil {
		return fmt.Errorf("reverting the changes of the node bridge: %w", err)
	}
	return nil
}

// EnsureBridge creates the bridge or repairs it: its addresses, IP forwarding, and the iptables rules with which nodes
// reach other networks. It records the changes in the journal first.
func (m *Network) EnsureBridge(ctx context.Context) error {
	name := Bridge(m.Layout)
	if err := m.Journal.Record(m.changes()...); err != nil {
		return err
	}
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Flags = name, net.FlagUp
		// Without a fixed address, the bridge has the lowest address of its ports, which change.
		attrs.HardwareAddr = hardwareAddr(m.Gateway())
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("creating the node bridge: %w", err)
		}
		link, err = netlink.LinkByName(name)
	}
	if err != nil {
		return fmt.Errorf("finding the node bridge: %w", err)
	}
	for _, subnet := range m.subnets() {
		if err := netlink.AddrReplace(link, address(subnet, 1)); err != nil {
			return fmt.Errorf("setting the address of the node bridge: %w", err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting the node bridge up: %w", err)
	}
	writer := newWriter(m.PacketFilter, nil)
	for _, subnet := range m.subnets() {
		is6 := subnet.Addr().Is6()
		if err := m.enableForwarding(is6); err != nil {
			return err
		}
		if err := writer.Sync(ctx, packetfilter.FamilyOf(is6), m.rules(subnet)); err != nil {
			return fmt.Errorf("writing the rules of the local nodes: %w", err)
		}
	}
	return nil
}

// enableForwarding enables IP forwarding for an IP family. It records the former value in the journal before it changes
// the kernel parameter.
func (m *Network) enableForwarding(is6 bool) error {
	name := "net/ipv4/ip_forward"
	if is6 {
		name = "net/ipv6/conf/all/forwarding"
	}
	file := "/proc/sys/" + name
	before, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading sysctl %s: %w", name, err)
	}
	old := strings.TrimSpace(string(before))
	if old == "1" {
		return nil
	}
	if err := m.Journal.Record(hostjournal.Change{Kind: hostjournal.Sysctl, Name: name, Before: old}); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("setting sysctl %s: %w", name, err)
	}
	return nil
}

// address returns the n-th address of subnet in the form in which netlink adds it to a link.
func address(subnet netip.Prefix, n int) *netlink.Addr {
	a := nthAddress(subnet, n)
	out := &netlink.Addr{IPNet: netlinkutil.IPNet(netip.PrefixFrom(a, subnet.Bits()))}
	if a.Is6() {
		// No other host can have the address, so skip duplicate address detection.
		out.Flags = unix.IFA_F_NODAD
	}
	return out
}

// hardwareAddr derives a locally administered MAC address from an IPv4 address. So neighbor caches
// stay valid when a link is created again.
func hardwareAddr(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x0a, 0x5a, b[0], b[1], b[2], b[3]}
}

// EnsureNode creates or repairs the namespace, the link and the routes of the i-th additional node.
// The bridge must exist.
func (m *Network) EnsureNode(i int) error {
	path, veth := Namespace(m.Layout, i), veth(m.Layout, i)
	if err := m.Journal.Record(
		hostjournal.Change{Kind: hostjournal.Mount, Name: path},
		hostjournal.Change{Kind: hostjournal.Link, Name: veth},
	); err != nil {
		return err
	}
	if err := ensureNamespace(path); err != nil {
		return fmt.Errorf("creating the network namespace of node %d: %w", i, err)
	}
	if err := m.ensureLink(path, veth, i); err != nil {
		return fmt.Errorf("connecting node %d to the bridge: %w", i, err)
	}
	if err := m.ensureSourceRoutes(i); err != nil {
		return fmt.Errorf("creating the routes to node %d: %w", i, err)
	}
	return nil
}

// ensureSourceRoutes makes the kernel use the address of the host's node as the source address of traffic
// from the host to the i-th additional node. Otherwise it would be the address of the bridge, which
// belongs to no node: a pod behind a node port with externalTrafficPolicy Local would not see the
// address of the node that connects. The route of the bridge itself has a lower priority than these
// routes. The kernel deletes them when their source address is removed.
func (m *Network) ensureSourceRoutes(i int) error {
	bridge, err := netlink.LinkByName(Bridge(m.Layout))
	if err != nil {
		return err
	}
	for _, to := range m.Addresses(i) {
		for _, source := range m.HostAddresses {
			if source.Is6() != to.Is6() {
				continue
			}
			err := netlink.RouteReplace(&netlink.Route{
				LinkIndex: bridge.Attrs().Index, Scope: netlink.SCOPE_LINK, Src: source.AsSlice(),
				Dst: netlinkutil.IPNet(netip.PrefixFrom(to, to.BitLen())),
			})
			// EINVAL: the machine does not have the source address (any more).
			if err != nil && !errors.Is(err, unix.EINVAL) {
				return err
			}
		}
	}
	return nil
}

// ensureLink creates or repairs the veth pair between the bridge and the namespace at path of the i-th additional node,
// with the node's addresses and default routes.
func (m *Network) ensureLink(path, veth string, i int) error {
	bridge, err := netlink.LinkByName(Bridge(m.Layout))
	if err != nil {
		return err
	}
	netns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer netns.Close()
	inside := InNamespace(path, func() error { _, err := netlink.LinkByName(linkName); return err })
	link, err := netlink.LinkByName(veth)
	if err == nil && inside != nil {
		// One side without the other is a leftover.
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
	if err != nil || inside != nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.TxQLen = veth, -1
		err := netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: attrs, PeerName: linkName, PeerNamespace: netlink.NsFd(int(netns.Fd())), PeerHardwareAddr: hardwareAddr(m.Addresses(i)[0]),
		})
		if err != nil {
			return fmt.Errorf("creating link %s: %w", veth, err)
		}
		if link, err = netlink.LinkByName(veth); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("attaching %s to the node bridge: %w", veth, err)
	}
	// With bridge-nf-call-iptables, the kernel passes bridged packets to iptables. A packet that
	// the rules of a Service send back to its source node then stays on the bridge instead of being
	// routed, and must leave through the port on which it arrived.
	if err := netlink.LinkSetHairpin(link, true); err != nil {
		return fmt.Errorf("setting hairpin mode of %s: %w", veth, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting %s up: %w", veth, err)
	}
	return InNamespace(path, func() error {
		if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "lo"}}); err != nil {
			return fmt.Errorf("setting lo up: %w", err)
		}
		link, err := netlink.LinkByName(linkName)
		if err != nil {
			return err
		}
		for _, subnet := range m.subnets() {
			if err := netlink.AddrReplace(link, address(subnet, i+1)); err != nil {
				return fmt.Errorf("setting the address of the node: %w", err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("setting %s up: %w", linkName, err)
		}
		for _, subnet := range m.subnets() {
			gateway := nthAddress(subnet, 1)
			everything := netlinkutil.IPNet(netip.PrefixFrom(gateway, 0).Masked())
			if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: everything, Gw: gateway.AsSlice()}); err != nil {
				return fmt.Errorf("creating the default route of the node: %w", err)
			}
		}
		return nil
	})
}

// Remove deletes the link and the namespace of the i-th additional node. It succeeds if they do not
// exist.
func Remove(l layout.Node, i int) error {
	link, err := netlink.LinkByName(veth(l, i))
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("removing the link of node %d: %w", i, err)
	}
	path := Namespace(l, i)
	for isNamespace(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("removing the network namespace of node %d: %w", i, err)
		}
	}
	return nil
}
