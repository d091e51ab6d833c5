// Package podnet gives a pod its own network: an address from the node's pod
// CIDRs, a veth pair into the pods' bridge, a default route and host ports. It
// works on the network namespace of its caller, by netlink; iptables is called
// once at the start and when host ports change, never for an ordinary pod.
//
// The bridge's address is the first of each CIDR and the pods' gateway. What
// leaves a CIDR and the bridge is masqueraded, unless a rule of the chain
// HK-NOMASQ accepts it first: there whoever knows the whole cluster's CIDR
// says so.
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

	"hyperkube/internal/hostchange"
	"hyperkube/internal/iptables"
	"hyperkube/internal/netdump"
)

// Config says how pods are connected.
type Config struct {
	// Bridge is the name of the pods' bridge, such as "hk-br0".
	Bridge string
	// LinkPrefix begins the names of the host's ends of veth pairs; at most
	// four bytes.
	LinkPrefix string
	// AddressDir keeps one file for each address given. It must not outlive
	// a reboot.
	AddressDir string
	// CIDRs are the node's pod CIDRs, at most one of each family; none if they are
	// not known before SetCIDRs.
	CIDRs []netip.Prefix
	// MTU of the pods' links in bytes; zero means that of the default route's
	// link when the bridge is made.
	MTU int
	// Tunnel is the name of the link through which pods of other nodes are
	// reached; it may come and go, or be empty. What new pods send off the node
	// is made to fit into it.
	Tunnel string
	// OpenPorts are TCP ports of this host that pods may reach whatever its
	// firewall says: those whose servers ask everybody who they are.
	OpenPorts []int
	// Journal records what is changed on the host; nil records nothing.
	Journal *hostchange.Journal
	// Log receives warnings; nil means slog's default.
	Log *slog.Logger
}

// Network is the pods' network of one node. Its methods are safe for several
// goroutines.
type Network struct {
	cfg     Config
	log     *slog.Logger
	pool    *pool
	netlink *netlink.Handle
	remover *remover
	guard   *iptables.Guard

	mu     sync.Mutex // guards what follows, and changes to bridge and iptables
	bridge int        // link index; zero until Setup has succeeded
	mtu    int        // the bridge's
	cidrs  []netip.Prefix
	ports  map[string][]portRule // host ports by pod
}

// New validates cfg and reads which addresses are given. It changes nothing.
func New(cfg Config) (*Network, error) {
	if cfg.Bridge == "" || len(cfg.Bridge) >= unix.IFNAMSIZ {
		return nil, fmt.Errorf("bad name of the pods' bridge: %q", cfg.Bridge)
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
		guard: iptables.NewGuard(0, cfg.Log, chainForward, chainInput, chainMasquerade, chainHostPorts, chainHostPortsSN),
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
			return nil, fmt.Errorf("pod CIDR %s has no room for pods", cidr)
		}
		if slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Addr().Is4() == cidr.Addr().Is4() }) {
			return nil, fmt.Errorf("pod CIDR %s is the second of its family", cidr)
		}
		out = append(out, cidr)
	}
	if len(out) == 0 {
		return nil, errors.New("no pod CIDR")
	}
	return out, nil
}

// Close closes what is open. The network stays.
func (n *Network) Close() {
	n.netlink.Close()
	n.remover.netlink.Close()
}

// CIDRs returns the pod CIDRs in use.
func (n *Network) CIDRs() []netip.Prefix {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.cidrs)
}

// SetCIDRs changes the pod CIDRs. Pods that have addresses keep them.
func (n *Network) SetCIDRs(ctx context.Context, cidrs []netip.Prefix) error {
	same, err := n.keepCIDRs(cidrs)
	if err != nil || same {
		return err
	}
	return n.Setup(ctx)
}

// PlanCIDRs changes what the next Setup goes by, and nothing else.
func (n *Network) PlanCIDRs(cidrs []netip.Prefix) error {
	_, err := n.keepCIDRs(cidrs)
	return err
}

// keepCIDRs tells whether the network is set up for those CIDRs.
func (n *Network) keepCIDRs(cidrs []netip.Prefix) (same bool, err error) {
	if cidrs, err = checkCIDRs(cidrs); err != nil {
		return false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	same = slices.Equal(cidrs, n.cidrs) && n.bridge != 0
	n.cidrs = cidrs
	return same, nil
}

// ErrNoCIDR is that of a Setup before SetCIDRs, where New was given none.
var ErrNoCIDR = errors.New("the node has no pod CIDR yet")

// Setup makes the bridge, the sysctls and the iptables rules, or mends what is
// missing of them.
func (n *Network) Setup(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.cidrs) == 0 {
		return ErrNoCIDR
	}
	if err := n.cfg.Journal.Record(
		hostchange.Change{Kind: hostchange.Link, Name: n.cfg.Bridge},
		hostchange.Change{Kind: hostchange.Link, Name: n.vethPrefix() + "*"},
	); err != nil {
		return err
	}
	bridge, err := n.setupBridge()
	if err != nil {
		return fmt.Errorf("making the pods' bridge: %w", err)
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

// Ensure is Setup where the bridge is not there or lacks an address; else it is
// taken as it is.
func (n *Network) Ensure(ctx context.Context) error {
	complete := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		bridge, err := n.netlink.LinkByName(n.cfg.Bridge)
		if err != nil || bridge.Type() != "bridge" {
			return false
		}
		have, err := netdump.Whole(func() ([]netlink.Addr, error) { return n.netlink.AddrList(bridge, netlink.FAMILY_ALL) })
		if err != nil {
			return false
		}
		for _, cidr := range n.cidrs {
			want := netip.PrefixFrom(Gateway(cidr), cidr.Bits())
			if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return netdump.Prefix(a.IPNet) == want }) {
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

// setupBridge makes the bridge and gives it the gateway addresses.
func (n *Network) setupBridge() (*netlink.LinkAttrs, error) {
	bridge, err := n.netlink.LinkByName(n.cfg.Bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = n.cfg.Bridge
		// Otherwise it is the lowest of the ports', which come and go.
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
		return nil, fmt.Errorf("link %s is there already and is no bridge but of type %s", n.cfg.Bridge, bridge.Type())
	}
	have, err := netdump.Whole(func() ([]netlink.Addr, error) { return n.netlink.AddrList(bridge, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("listing its addresses: %w", err)
	}
	var keep []netip.Prefix
	for _, cidr := range n.cidrs {
		want := netip.PrefixFrom(Gateway(cidr), cidr.Bits())
		keep = append(keep, want)
		if slices.ContainsFunc(have, func(a netlink.Addr) bool { return netdump.Prefix(a.IPNet) == want }) {
			continue
		}
		addr := &netlink.Addr{IPNet: netdump.IPNet(want)}
		if want.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := n.netlink.AddrReplace(bridge, addr); err != nil {
			return nil, fmt.Errorf("giving it address %s: %w", want, err)
		}
	}
	// Old gateways go, unless pods still use them.
	for _, a := range have {
		p := netdump.Prefix(a.IPNet)
		if slices.Contains(keep, p) || p.Addr().IsLinkLocalUnicast() || n.pool.anyIn(p.Masked()) {
			continue
		}
		if err := n.netlink.AddrDel(bridge, &a); err != nil {
			return nil, fmt.Errorf("taking address %s away: %w", p, err)
		}
	}
	if err := n.netlink.LinkSetUp(bridge); err != nil {
		return nil, fmt.Errorf("setting it up: %w", err)
	}
	return bridge.Attrs(), nil
}

// Gateway is the first address of a CIDR, which the bridge has.
func Gateway(cidr netip.Prefix) netip.Addr { return cidr.Masked().Addr().Next() }

// hardwareAddr derives a locally administered MAC from an address, so that a
// neighbour's cache entry stays right when the address comes back.
func hardwareAddr(addr netip.Addr) net.HardwareAddr {
	b := addr.AsSlice()
	return append(net.HardwareAddr{0x0a, 0x58}, b[len(b)-4:]...)
}
