// Package podnet implements the pod network of a node: addresses from the node's pod CIDRs, veth
// pairs connected to the pod bridge, a default route and host ports. It works in the network
// namespace of the caller and uses netlink. It writes packet filter rules once at startup and when host
// ports change, but not for ordinary pods.
//
// The bridge has the first address of each CIDR, which is the gateway of the pods. Packets from a
// CIDR that do not leave through the bridge are masqueraded, unless a rule in the chain HK-NOMASQ
// accepts them first. The component that knows the cluster CIDR writes the rules of that chain.
package podnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/netlinkutil"
	"hyperkube/internal/host/packetfilter"
)

// Config configures the pod network of a node: its bridge, pod CIDRs and MTU, and where addresses are stored.
type Config struct {
	// Bridge is the name of the pod bridge, such as "hk-br0".
	Bridge string
	// LinkPrefix is the name prefix of the host ends of veth pairs. It has at most four bytes.
	LinkPrefix string
	// AddressDir contains one file per allocated address. It must be cleared on reboot.
	AddressDir string
	// CIDRs are the node's pod CIDRs, at most one per family. It may be empty if they are set later
	// with SetCIDRs.
	CIDRs []netip.Prefix
	// MTU is the MTU of the pod links in bytes. Zero means the MTU of the default route's link when
	// the bridge is created.
	MTU int
	// Tunnels are the names of links to the pods of other nodes that need not exist. Packets that new
	// pods send to other nodes are limited to the smallest MTU of those that exist.
	Tunnels []string
	// OpenPorts are TCP ports of this host to which pods can connect regardless of the host's
	// firewall. Their servers must authenticate clients.
	OpenPorts []int
	// PacketFilter is how rules are written. Empty means IPTables.
	PacketFilter packetfilter.Mode
	// Journal records the changes to the host. If it is nil, nothing is recorded.
	Journal *hostjournal.Journal
	// Log receives warnings. If it is nil, slog.Default() is used.
	Log *slog.Logger
}

// Network is the pod network of a node. The container runtime connects pods to it. Its methods are
// safe for concurrent use.
type Network struct {
	cfg     Config
	log     *slog.Logger
	pool    *pool
	netlink *netlink.Handle
	remover *remover
	writer  *packetfilter.Writer

	mu     sync.Mutex // guards the fields below, and changes of the bridge and the rules
	bridge int        // link index of the bridge; zero until Setup has succeeded
	mtu    int        // MTU of the bridge
	cidrs  []netip.Prefix
	ports  map[string][]portRule // host ports by pod ID
}

// New validates cfg and loads the allocated addresses. It does not change the host.
func New(cfg Config) (*Network, error) {
	if cfg.Bridge == "" || len(cfg.Bridge) >= unix.IFNAMSIZ {
		return nil, fmt.Errorf("invalid name of the pod bridge: %q", cfg.Bridge)
	}
	if len(cfg.LinkPrefix) > 4 {
		return nil, fmt.Errorf("link prefix %q is longer than four bytes", cfg.LinkPrefix)
	}
	var cidrs []netip.Prefix
	if len(cfg.CIDRs) > 0 {
		var err error
		if cidrs, err = checkCIDRs(cfg.CIDRs); err != nil {
			return nil, err
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	pool, err := openPool(cfg.AddressDir)
	if err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	remover, err := newRemover()
	if err != nil {
		handle.Close()
		return nil, err
	}
	return &Network{
		cfg: cfg, log: cfg.Log, pool: pool, netlink: handle, remover: remover, cidrs: cidrs, ports: map[string][]portRule{},
		writer: newWriter(cfg),
	}, nil
}

func checkCIDRs(cidrs []netip.Prefix) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, cidr := range cidrs {
		if !cidr.IsValid() {
			return nil, errors.New("invalid pod CIDR")
		}
		cidr = cidr.Masked()
		if cidr.Addr().BitLen()-cidr.Bits() < 2 {
			return nil, fmt.Errorf("pod CIDR %s is too small for pods", cidr)
		}
		if slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Addr().Is4() == cidr.Addr().Is4() }) {
			return nil, fmt.Errorf("pod CIDR %s: only one pod CIDR per family is allowed", cidr)
		}
		out = append(out, cidr)
	}
	if len(out) == 0 {
		return nil, errors.New("no pod CIDR")
	}
	return out, nil
}

// Close closes the netlink sockets. It does not change the network.
func (n *Network) Close() {
	n.netlink.Close()
	n.remover.netlink.Close()
}

// CIDRs returns the pod CIDRs of the node for which the network is set up, or will be by the next call of Setup.
func (n *Network) CIDRs() []netip.Prefix {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.cidrs)
}

// SetCIDRs changes the pod CIDRs and sets up the network for them, unless that is already done.
// Existing pods keep their addresses.
func (n *Network) SetCIDRs(ctx context.Context, cidrs []netip.Prefix) error {
	same, err := n.storeCIDRs(cidrs)
	if err != nil || same {
		return err
	}
	return n.Setup(ctx)
}

// PlanCIDRs changes the pod CIDRs that the next call of Setup uses. It does not change the host.
func (n *Network) PlanCIDRs(cidrs []netip.Prefix) error {
	_, err := n.storeCIDRs(cidrs)
	return err
}

// storeCIDRs stores the CIDRs. It reports whether the network is already set up for them.
func (n *Network) storeCIDRs(cidrs []netip.Prefix) (same bool, err error) {
	if cidrs, err = checkCIDRs(cidrs); err != nil {
		return false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	same = slices.Equal(cidrs, n.cidrs) && n.bridge != 0
	n.cidrs = cidrs
	return same, nil
}

// ErrNoCIDR is returned by Setup if neither New nor SetCIDRs has configured pod CIDRs, because the
// node has none yet.
var ErrNoCIDR = errors.New("node has no pod CIDR yet")

// Setup creates the bridge, sysctls and packet filter rules of the pod network, or repairs existing
// ones. It records them in the host change journal first. It returns ErrNoCIDR if there are no
// CIDRs.
func (n *Network) Setup(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.cidrs) == 0 {
		return ErrNoCIDR
	}
	if err := n.cfg.Journal.Record(
		hostjournal.Change{Kind: hostjournal.Link, Name: n.cfg.Bridge},
		hostjournal.Change{Kind: hostjournal.Link, Name: n.vethPrefix() + "*"},
	); err != nil {
		return err
	}
	bridge, err := n.setupBridge()
	if err != nil {
		return fmt.Errorf("creating pod bridge: %w", err)
	}
	if err := n.setupSysctls(); err != nil {
		return err
	}
	if err := n.setupRules(ctx); err != nil {
		return err
	}
	n.bridge, n.mtu = bridge.Index, bridge.MTU
	return nil
}

// Ensure calls Setup if the bridge does not exist or lacks a gateway address. Otherwise it uses the
// existing bridge, for example that of an earlier process, and leaves sysctls and rules unchanged.
func (n *Network) Ensure(ctx context.Context) error {
	complete := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		bridge, err := n.netlink.LinkByName(n.cfg.Bridge)
		if err != nil || bridge.Type() != "bridge" {
			return false
		}
		have, err := netlinkutil.List(func() ([]netlink.Addr, error) { return n.netlink.AddrList(bridge, netlink.FAMILY_ALL) })
		if err != nil {
			return false
		}
		for _, cidr := range n.cidrs {
			want := netip.PrefixFrom(Gateway(cidr), cidr.Bits())
			if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return netlinkutil.Prefix(a.IPNet) == want }) {
				return false
			}
		}
		n.bridge, n.mtu = bridge.Attrs().Index, bridge.Attrs().MTU
		return true
	}
	if complete() {
		return nil
	}
	return n.Setup(ctx)
}

// setupBridge creates the bridge if it does not exist, and adds the gateway address of each CIDR.
// It removes gateway addresses of former CIDRs that no pod uses. The caller must hold n.mu, because
// it reads n.cidrs.
func (n *Network) setupBridge() (*netlink.LinkAttrs, error) {
	bridge, err := n.netlink.LinkByName(n.cfg.Bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = n.cfg.Bridge
		// By default, the bridge uses the lowest MAC address of its ports, which changes with them.
		attrs.HardwareAddr = hardwareAddr(Gateway(n.cidrs[0]))
		attrs.Flags = net.FlagUp
		if err := n.netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		if bridge, err = n.netlink.LinkByName(n.cfg.Bridge); err == nil {
			err = n.setMTU(bridge)
		}
	}
	if err != nil {
		return nil, err
	}
	if bridge.Type() != "bridge" {
		return nil, fmt.Errorf("link %s exists and is not a bridge but of type %s", n.cfg.Bridge, bridge.Type())
	}
	have, err := netlinkutil.List(func() ([]netlink.Addr, error) { return n.netlink.AddrList(bridge, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("listing bridge addresses: %w", err)
	}
	var keep []netip.Prefix
	for _, cidr := range n.cidrs {
		want := netip.PrefixFrom(Gateway(cidr), cidr.Bits())
		keep = append(keep, want)
		if slices.ContainsFunc(have, func(a netlink.Addr) bool { return netlinkutil.Prefix(a.IPNet) == want }) {
			continue
		}
		addr := &netlink.Addr{IPNet: netlinkutil.IPNet(want)}
		if want.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := n.netlink.AddrReplace(bridge, addr); err != nil {
			return nil, fmt.Errorf("adding bridge address %s: %w", want, err)
		}
	}
	// Remove old gateway addresses, unless pods still use them.
	for _, a := range have {
		p := netlinkutil.Prefix(a.IPNet)
		if slices.Contains(keep, p) || p.Addr().IsLinkLocalUnicast() || n.pool.anyIn(p.Masked()) {
			continue
		}
		if err := n.netlink.AddrDel(bridge, &a); err != nil {
			return nil, fmt.Errorf("removing bridge address %s: %w", p, err)
		}
	}
	if err := n.netlink.LinkSetUp(bridge); err != nil {
		return nil, fmt.Errorf("bringing up the bridge: %w", err)
	}
	return bridge.Attrs(), nil
}

// Gateway returns the first address of a pod CIDR, which is assigned to the bridge and is the
// gateway of the pods.
func Gateway(cidr netip.Prefix) netip.Addr { return cidr.Masked().Addr().Next() }

// hardwareAddr derives a locally administered MAC address from an IP address, so that neighbor
// cache entries remain valid when the IP address is used again.
func hardwareAddr(addr netip.Addr) net.HardwareAddr {
	b := addr.AsSlice()
	return append(net.HardwareAddr{0x0a, 0x58}, b[len(b)-4:]...)
}
