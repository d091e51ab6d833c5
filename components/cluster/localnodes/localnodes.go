// Package localnodes makes the network of the further nodes that `up --nodes`
// has on the same machine: for each a network namespace, and a bridge that
// joins them with the machine.
//
//	machine: hk-nodes .1 ──┬── hkn1 ═ eth0 .2  namespace of the first further node
//	                       └── hkn2 ═ eth0 .3  namespace of the second
//
// In a cluster with IPv6 all have an address of that family, too.
//
// A namespace is held by a bind mount in the node's run folder and by nothing
// else, so it outlives every process. All names derive from the layout, and
// everything is idempotent and recorded before it is made.
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

	"hyperkube/internal/hostchange"
	"hyperkube/internal/iptables"
	"hyperkube/internal/layout"
	"hyperkube/internal/netdump"
)

// linkName is the name of a node's own link in its namespace.
const linkName = "eth0"

// Machine is the network of the nodes of one machine.
type Machine struct {
	// Layout is that of the machine's first node, whose namespace is the
	// caller's.
	Layout layout.Node
	// Subnet has the addresses of the bridge and the nodes, Subnet6 those of IPv6;
	// that is invalid where there are none.
	Subnet, Subnet6 netip.Prefix
	// PodCIDRs are those of the cluster.
	PodCIDRs []netip.Prefix
	// Own are the addresses of the machine's first node, by which further ones are to
	// know what comes from it, at most one of each family.
	Own []netip.Addr
	// Journal records the changes to the host.
	Journal *hostchange.Journal
}

// Bridge is the name of the bridge between the nodes.
func Bridge(l layout.Node) string { return l.LinkPrefix + "-nodes" }

// veth is the name of the machine's end of the i-th further node's link.
func veth(l layout.Node, i int) string { return l.LinkPrefix + "n" + strconv.Itoa(i) }

// Namespace is the path of the i-th further node's network namespace.
func Namespace(l layout.Node, i int) string { return filepath.Join(l.Numbered(i).Run, "netns") }

// Gateway is the machine's own address on the bridge.
func (m *Machine) Gateway() netip.Addr { return nth(m.Subnet, 1) }

// Addresses are those of the i-th further node, of IPv4 and, if there is Subnet6,
// of IPv6.
func (m *Machine) Addresses(i int) []netip.Addr {
	var out []netip.Addr
	for _, subnet := range m.subnets() {
		out = append(out, nth(subnet, i+1))
	}
	return out
}

func (m *Machine) subnets() []netip.Prefix {
	if m.Subnet6.IsValid() {
		return []netip.Prefix{m.Subnet, m.Subnet6}
	}
	return []netip.Prefix{m.Subnet}
}

// nth is the n-th address of a subnet.
func nth(subnet netip.Prefix, n int) netip.Addr {
	addr := subnet.Masked().Addr()
	for range n {
		addr = addr.Next()
	}
	return addr
}

// changes are those of the bridge.
func (m *Machine) changes() []hostchange.Change {
	out := []hostchange.Change{{Kind: hostchange.Link, Name: Bridge(m.Layout)}}
	for _, subnet := range m.subnets() {
		family := iptables.Of(subnet.Addr().Is6())
		for _, j := range jumps {
			out = append(out, hostchange.Change{Kind: hostchange.Chain, Name: string(family) + " " + j.Table + " " + j.To}, j.Change(family))
		}
	}
	return out
}

// HasBridge tells whether the bridge is there.
func (m *Machine) HasBridge() bool {
	_, err := netlink.LinkByName(Bridge(m.Layout))
	return err == nil
}

// RemoveBridge takes back what EnsureBridge has made, once there are no further nodes.
// Forwarding stays, for pods need it, too.
func (m *Machine) RemoveBridge(ctx context.Context) error {
	// The link goes first: without it KeepRules does not write the rules again.
	link, err := netlink.LinkByName(Bridge(m.Layout))
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("removing the bridge of the nodes: %w", err)
	}
	if err := hostchange.Revert(ctx, m.changes()); err != nil {
		return fmt.Errorf("removing the bridge of the nodes: %w", err)
	}
	return nil
}

// EnsureBridge makes the bridge, or mends what is missing of it: its address,
// forwarding, and the rules by which nodes reach what is outside.
func (m *Machine) EnsureBridge(ctx context.Context) error {
	name := Bridge(m.Layout)
	if err := m.Journal.Record(m.changes()...); err != nil {
		return err
	}
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Flags = name, net.FlagUp
		// Otherwise it is the lowest of the ports', which come and go.
		attrs.HardwareAddr = hardwareAddr(m.Gateway())
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("making the bridge of the nodes: %w", err)
		}
		link, err = netlink.LinkByName(name)
	}
	if err != nil {
		return fmt.Errorf("finding the bridge of the nodes: %w", err)
	}
	for _, subnet := range m.subnets() {
		if err := netlink.AddrReplace(link, address(subnet, 1)); err != nil {
			return fmt.Errorf("giving the bridge of the nodes its address: %w", err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting up the bridge of the nodes: %w", err)
	}
	for _, subnet := range m.subnets() {
		is6 := subnet.Addr().Is6()
		if err := m.forward(is6); err != nil {
			return err
		}
		saved, err := iptables.Save(ctx, iptables.Of(is6))
		if err != nil {
			return err
		}
		if err := iptables.Restore(ctx, iptables.Of(is6), m.rules(subnet, saved)); err != nil {
			return fmt.Errorf("writing the rules of the nodes: %w", err)
		}
	}
	return nil
}

func (m *Machine) forward(is6 bool) error {
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
	if err := m.Journal.Record(hostchange.Change{Kind: hostchange.Sysctl, Name: name, Before: old}); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("setting sysctl %s: %w", name, err)
	}
	return nil
}

// address is the n-th address of a subnet as links have it.
func address(subnet netip.Prefix, n int) *netlink.Addr {
	a := nth(subnet, n)
	out := &netlink.Addr{IPNet: netdump.IPNet(netip.PrefixFrom(a, subnet.Bits()))}
	if a.Is6() {
		// Nobody else can have it, so that it may be used at once.
		out.Flags = unix.IFA_F_NODAD
	}
	return out
}

// hardwareAddr derives a locally administered MAC from an IPv4 address, so that
// neighbours' caches stay right when a link is made again.
func hardwareAddr(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x0a, 0x5a, b[0], b[1], b[2], b[3]}
}

// EnsureNode makes namespace and link of the i-th further node, or mends what
// is missing of them. The bridge must be there.
func (m *Machine) EnsureNode(i int) error {
	path, veth := Namespace(m.Layout, i), veth(m.Layout, i)
	if err := m.Journal.Record(
		hostchange.Change{Kind: hostchange.Mount, Name: path},
		hostchange.Change{Kind: hostchange.Link, Name: veth},
	); err != nil {
		return err
	}
	if err := ensureNamespace(path); err != nil {
		return fmt.Errorf("making the network namespace of node %d: %w", i, err)
	}
	if err := m.ensureLink(path, veth, i); err != nil {
		return fmt.Errorf("linking node %d: %w", i, err)
	}
	if err := m.ensureSource(i); err != nil {
		return fmt.Errorf("making the routes to node %d: %w", i, err)
	}
	return nil
}

// ensureSource has what this machine sends to the i-th further node come from the
// address that the cluster knows the machine by, and not from the bridge's, which is
// no node's: who is called by a node port with the external traffic policy Local
// sees the node that calls. The bridge's own route stays below these ones, which go
// with the address that they name.
func (m *Machine) ensureSource(i int) error {
	bridge, err := netlink.LinkByName(Bridge(m.Layout))
	if err != nil {
		return err
	}
	for _, to := range m.Addresses(i) {
		for _, own := range m.Own {
			if own.Is6() != to.Is6() {
				continue
			}
			err := netlink.RouteReplace(&netlink.Route{
				LinkIndex: bridge.Attrs().Index, Scope: netlink.SCOPE_LINK, Src: own.AsSlice(),
				Dst: netdump.IPNet(netip.PrefixFrom(to, to.BitLen())),
			})
			// An address that the machine does not have (any more) is no source.
			if err != nil && !errors.Is(err, unix.EINVAL) {
				return err
			}
		}
	}
	return nil
}

func (m *Machine) ensureLink(path, veth string, i int) error {
	bridge, err := netlink.LinkByName(Bridge(m.Layout))
	if err != nil {
		return err
	}
	netns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer netns.Close()
	inside := Inside(path, func() error { _, err := netlink.LinkByName(linkName); return err })
	link, err := netlink.LinkByName(veth)
	if err == nil && inside != nil {
		// An end without the other is a leftover.
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
			return fmt.Errorf("making link %s: %w", veth, err)
		}
		if link, err = netlink.LinkByName(veth); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("joining %s to the bridge: %w", veth, err)
	}
	// Where the kernel shows bridged packets to iptables (bridge-nf-call-iptables)
	// one that a Service's rules lead back to the node that it came from stays on
	// the bridge instead of being routed, and leaves by the port that it came in by.
	if err := netlink.LinkSetHairpin(link, true); err != nil {
		return fmt.Errorf("setting hairpin mode of %s: %w", veth, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting up %s: %w", veth, err)
	}
	return Inside(path, func() error {
		if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "lo"}}); err != nil {
			return fmt.Errorf("setting up lo: %w", err)
		}
		link, err := netlink.LinkByName(linkName)
		if err != nil {
			return err
		}
		for _, subnet := range m.subnets() {
			if err := netlink.AddrReplace(link, address(subnet, i+1)); err != nil {
				return fmt.Errorf("giving the node its address: %w", err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("setting up %s: %w", linkName, err)
		}
		for _, subnet := range m.subnets() {
			gateway := nth(subnet, 1)
			everything := netdump.IPNet(netip.PrefixFrom(gateway, 0).Masked())
			if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: everything, Gw: gateway.AsSlice()}); err != nil {
				return fmt.Errorf("making the node's default route: %w", err)
			}
		}
		return nil
	})
}

// Remove takes away namespace and link of the i-th further node. What is gone
// already is no error.
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
