package podnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/host/netlinkutil"
)

// PodLink is the name of the network interface inside a pod.
const PodLink = "eth0"

// Pod describes a pod to connect to the pod network: its ID, network namespace, host ports and bandwidth limits.
type Pod struct {
	// ID is the ID of its sandbox. It has at least 11 characters.
	ID string
	// Netns is its open network namespace. The caller owns and closes it.
	Netns *os.File
	// Ports are the host ports of the pod.
	Ports []PortMapping
	// Ingress and Egress limit the received and sent bandwidth in bits per second. Zero means no
	// limit.
	Ingress, Egress uint64
	// Inside, if not nil, is called in the network namespace on a dedicated thread that exits
	// afterwards, so it may enter other namespaces of the pod.
	Inside func() error
}

// Allocate allocates one address of each pod CIDR for the pod with the sandbox ID id and returns
// them in the order of the CIDRs. The addresses are stored, so that they survive a restart of the
// process. If the pod has addresses already, it returns them.
func (n *Network) Allocate(id string) ([]netip.Addr, error) {
	if have := n.Addresses(id); len(have) > 0 {
		return have, nil
	}
	var addrs []netip.Addr
	for _, cidr := range n.CIDRs() {
		addr, err := n.pool.allocate(cidr, id)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("allocating pod address: %w", err), n.Free(id))
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// Addresses returns the addresses that are allocated to a pod, in the order of the CIDRs, or none.
func (n *Network) Addresses(id string) []netip.Addr {
	addrs := n.pool.addresses(id)
	cidrs := n.CIDRs()
	v4First := len(cidrs) > 0 && cidrs[0].Addr().Is4()
	slices.SortFunc(addrs, func(a, b netip.Addr) int {
		if a.Is4() != b.Is4() && a.Is4() == v4First {
			return -1
		}
		return 1
	})
	return addrs
}

// Free releases the addresses of a pod, so that other pods can get them.
func (n *Network) Free(id string) error {
	return n.pool.free(func(owner string) bool { return owner == id })
}

// Reconcile releases the addresses and removes the links of all pods for which alive returns false.
// It is called after a restart and for the CNI command GC, because a process may have crashed
// before it had disconnected its pods.
func (n *Network) Reconcile(alive func(id string) bool) error {
	names := map[string]bool{}
	n.pool.mu.Lock()
	for _, id := range n.pool.allocated {
		if alive(id) {
			names[n.veth(id)] = true
		}
	}
	n.pool.mu.Unlock()
	if err := n.pool.free(func(id string) bool { return !alive(id) }); err != nil {
		return err
	}
	links, err := netlinkutil.List(n.netlink.LinkList)
	if err != nil {
		return fmt.Errorf("listing links: %w", err)
	}
	var gone []int
	for _, link := range links {
		name := link.Attrs().Name
		if link.Type() == "veth" && len(name) > len(n.vethPrefix()) && name[:len(n.vethPrefix())] == n.vethPrefix() && !names[name] {
			gone = append(gone, link.Attrs().Index)
		}
	}
	if err := n.remover.remove(gone...); err != nil {
		return fmt.Errorf("removing links of deleted pods: %w", err)
	}
	return nil
}

func (n *Network) vethPrefix() string { return n.cfg.LinkPrefix + "v" }

// veth returns the name of the host end of the veth pair that connects the pod with the sandbox ID id to the bridge.
func (n *Network) veth(id string) string {
	prefix := n.vethPrefix()
	return prefix + id[:min(len(id), unix.IFNAMSIZ-1-len(prefix))]
}

// Loopback brings up the loopback link of the network namespace netns, for pods that have no other
// link. If inside is not nil, it is then called in the namespace.
func Loopback(netns *os.File, inside func() error) error {
	return within(netns, func(h *netlink.Handle) error {
		if err := loopbackUp(h); err != nil {
			return err
		}
		if inside != nil {
			return inside()
		}
		return nil
	})
}

func loopbackUp(h *netlink.Handle) error {
	// In every namespace, the loopback link has index 1.
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "lo"}}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bringing up lo: %w", err)
	}
	return nil
}

// Attach connects a pod, to which Allocate has assigned addresses, to the bridge: it creates the
// veth pair, configures the pod's link and routes, and opens the host ports. After an error nothing
// remains. To retry after a crash, call Detach first.
func (n *Network) Attach(ctx context.Context, pod Pod) error {
	addrs := n.Addresses(pod.ID)
	if len(addrs) == 0 {
		return errors.New("pod has no address")
	}
	n.mu.Lock()
	bridge, mtu, cidrs := n.bridge, n.mtu, n.cidrs
	n.mu.Unlock()
	if bridge == 0 {
		return errors.New("pod network is not set up")
	}
	offNode, err := n.offNodeMTU(mtu)
	if err != nil {
		return err
	}
	name := n.veth(pod.ID)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	attrs.MasterIndex = bridge
	attrs.MTU = mtu
	attrs.TxQLen = -1
	attrs.Flags = net.FlagUp
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         PodLink,
		PeerHardwareAddr: hardwareAddr(addrs[0]),
		PeerMTU:          uint32(mtu),
		PeerNamespace:    netlink.NsFd(int(pod.Netns.Fd())),
	}
	if err := n.netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("creating pod link %s: %w", name, err)
	}
	err = within(pod.Netns, func(h *netlink.Handle) error {
		if err := loopbackUp(h); err != nil {
			return err
		}
		if err := configure(h, addrs, cidrs, offNode); err != nil {
			return err
		}
		if pod.Egress > 0 {
			link, err := h.LinkByName(PodLink)
			if err == nil {
				err = limit(h, link, pod.Egress)
			}
			if err != nil {
				return err
			}
		}
		if pod.Inside != nil {
			return pod.Inside()
		}
		return nil
	})
	if err == nil {
		err = n.setHairpin(name, pod.Ingress)
	}
	if err == nil && len(pod.Ports) > 0 {
		err = n.SetPorts(ctx, pod.ID, addrs, pod.Ports)
	}
	if err != nil {
		return errors.Join(err, n.Detach(ctx, pod.ID))
	}
	return nil
}

// setHairpin configures the host end, named name, of a pod's veth pair: it enables hairpin mode and
// limits the bandwidth that the pod receives to ingress bits per second. Zero means no limit.
func (n *Network) setHairpin(name string, ingress uint64) error {
	link, err := n.netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding link %s: %w", name, err)
	}
	// With hairpin mode, a pod can connect to itself through its own Service.
	if err := n.netlink.LinkSetHairpin(link, true); err != nil {
		return fmt.Errorf("setting hairpin mode of %s: %w", name, err)
	}
	if ingress > 0 {
		return limit(n.netlink, link, ingress)
	}
	return nil
}

// configure sets the addresses and default routes of the pod's link. addrs are addresses in cidrs,
// which may be in another order. mtu is the MTU of the default routes; zero means that of the link.
func configure(h *netlink.Handle, addrs []netip.Addr, cidrs []netip.Prefix, mtu int) error {
	link, err := h.LinkByName(PodLink)
	if err != nil {
		return fmt.Errorf("finding %s in the pod: %w", PodLink, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bringing up %s in the pod: %w", PodLink, err)
	}
	for _, addr := range addrs {
		i := slices.IndexFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(addr) })
		if i < 0 {
			return fmt.Errorf("address %s is not in any pod CIDR", addr)
		}
		a := &netlink.Addr{IPNet: netlinkutil.IPNet(netip.PrefixFrom(addr, cidrs[i].Bits()))}
		if addr.Is6() {
			// Addresses are unique, so pods need not wait for duplicate address detection.
			a.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(link, a); err != nil {
			return fmt.Errorf("adding pod address %s: %w", addr, err)
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: Gateway(cidrs[i]).AsSlice(), MTU: mtu, Flags: int(netlink.FLAG_ONLINK)}
		if err := h.RouteAdd(route); err != nil {
			return fmt.Errorf("adding default route of the pod: %w", err)
		}
	}
	return nil
}

// within runs f in the network namespace netns, on a dedicated thread that exits afterwards, and
// waits for it. f gets a netlink handle of the namespace.
func within(netns *os.File, f func(*netlink.Handle) error) error {
	done := make(chan error, 1)
	go func() {
		// Not unlocked, so that the thread exits and is not reused.
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("entering network namespace of the pod: %w", err)
			}
			h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
			if err != nil {
				return fmt.Errorf("opening netlink in the pod: %w", err)
			}
			defer h.Close()
			return f(h)
		}()
	}()
	return <-done
}

// Detach removes the link and host ports of a pod. It is not an error if they do not exist. The pod
// keeps its addresses until Free is called.
func (n *Network) Detach(ctx context.Context, id string) error {
	err := n.SetPorts(ctx, id, nil, nil)
	found, linkErr := n.netlink.LinkByName(n.veth(id))
	if linkErr == nil {
		linkErr = n.remover.remove(found.Attrs().Index)
	}
	if errors.As(linkErr, &netlink.LinkNotFoundError{}) {
		linkErr = nil
	}
	if linkErr != nil {
		linkErr = fmt.Errorf("removing pod link: %w", linkErr)
	}
	return errors.Join(err, linkErr)
}

// Traffic contains the traffic counters of a pod's link, from the perspective of the pod.
type Traffic struct {
	RxBytes, RxErrors, TxBytes, TxErrors       uint64
	RxPackets, RxDropped, TxPackets, TxDropped uint64
}

// Traffic returns the counters of a pod's link. They are zero if the kernel reports none. It returns an error if the
// pod has no link.
func (n *Network) Traffic(id string) (Traffic, error) {
	link, err := n.netlink.LinkByName(n.veth(id))
	if err != nil {
		return Traffic{}, fmt.Errorf("reading pod traffic counters: %w", err)
	}
	s := link.Attrs().Statistics
	if s == nil {
		return Traffic{}, nil
	}
	// Packets that the host end sends are received by the pod.
	return Traffic{
		RxBytes: s.TxBytes, RxErrors: s.TxErrors, RxPackets: s.TxPackets, RxDropped: s.TxDropped,
		TxBytes: s.RxBytes, TxErrors: s.RxErrors, TxPackets: s.RxPackets, TxDropped: s.RxDropped,
	}, nil
}
