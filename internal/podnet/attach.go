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

	"hyperkube/internal/netdump"
)

// PodLink is the name of a pod's own link.
const PodLink = "eth0"

// Pod is a pod to connect.
type Pod struct {
	// ID is its sandbox's, at least 11 characters long.
	ID string
	// Netns is an open network namespace; the caller keeps and closes it.
	Netns *os.File
	// Ports are its host ports.
	Ports []PortMapping
	// Ingress and Egress bound what it receives and sends, in bits a second;
	// zero: not at all.
	Ingress, Egress uint64
	// Inside, when not nil, is called in the namespace, on a thread that
	// ends after it: it may enter further namespaces of the pod.
	Inside func() error
}

// Allocate gives a pod one address of each CIDR, IPv4 or IPv6 first as the
// CIDRs are, and writes them down. A pod that has addresses keeps them.
func (n *Network) Allocate(id string) ([]netip.Addr, error) {
	if have := n.Addresses(id); len(have) > 0 {
		return have, nil
	}
	var addrs []netip.Addr
	for _, cidr := range n.CIDRs() {
		addr, err := n.pool.take(cidr, id)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("allocating a pod address: %w", err), n.Free(id))
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// Addresses returns the addresses that a pod has, in the order of the CIDRs;
// none if it has none.
func (n *Network) Addresses(id string) []netip.Addr {
	addrs := n.pool.of(id)
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

// Free takes a pod's addresses back.
func (n *Network) Free(id string) error {
	return n.pool.free(func(owner string) bool { return owner == id })
}

// Reconcile takes back the addresses and links of all pods but those that
// alive tells of, after a crash.
func (n *Network) Reconcile(alive func(id string) bool) error {
	names := map[string]bool{}
	n.pool.mu.Lock()
	for _, id := range n.pool.given {
		if alive(id) {
			names[n.veth(id)] = true
		}
	}
	n.pool.mu.Unlock()
	if err := n.pool.free(func(id string) bool { return !alive(id) }); err != nil {
		return err
	}
	links, err := netdump.Whole(n.netlink.LinkList)
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
		return fmt.Errorf("removing links of pods that are gone: %w", err)
	}
	return nil
}

func (n *Network) vethPrefix() string { return n.cfg.LinkPrefix + "v" }

// veth is the name of the host's end of a pod's link.
func (n *Network) veth(id string) string {
	prefix := n.vethPrefix()
	return prefix + id[:min(len(id), unix.IFNAMSIZ-1-len(prefix))]
}

// Loopback sets up a namespace in which only the loopback link is wanted.
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
	// The loopback link is the first of every namespace.
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "lo"}}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("setting up lo: %w", err)
	}
	return nil
}

// Attach connects a pod that has addresses. Repeating it after a crash starts
// with Detach.
func (n *Network) Attach(ctx context.Context, pod Pod) error {
	addrs := n.Addresses(pod.ID)
	if len(addrs) == 0 {
		return errors.New("the pod has no address")
	}
	n.mu.Lock()
	bridge, mtu, cidrs := n.bridge, n.mtu, n.cidrs
	n.mu.Unlock()
	if bridge == 0 {
		return errors.New("the pod network is not set up")
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
		return fmt.Errorf("making the pod's link %s: %w", name, err)
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

// setHairpin sets up the host's end of a pod's link.
func (n *Network) setHairpin(name string, ingress uint64) error {
	link, err := n.netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding link %s: %w", name, err)
	}
	// A pod reaches itself through its own Service.
	if err := n.netlink.LinkSetHairpin(link, true); err != nil {
		return fmt.Errorf("setting hairpin mode of %s: %w", name, err)
	}
	if ingress > 0 {
		return limit(n.netlink, link, ingress)
	}
	return nil
}

// configure sets addresses and routes of the pod's link. Packets by the default
// route are at most mtu bytes large, if that is not zero.
func configure(h *netlink.Handle, addrs []netip.Addr, cidrs []netip.Prefix, mtu int) error {
	link, err := h.LinkByName(PodLink)
	if err != nil {
		return fmt.Errorf("finding %s in the pod: %w", PodLink, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting up %s in the pod: %w", PodLink, err)
	}
	for _, addr := range addrs {
		i := slices.IndexFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(addr) })
		if i < 0 {
			return fmt.Errorf("address %s is in no pod CIDR", addr)
		}
		a := &netlink.Addr{IPNet: netdump.IPNet(netip.PrefixFrom(addr, cidrs[i].Bits()))}
		if addr.Is6() {
			// Nobody else can have it, and pods do not wait for the proof.
			a.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(link, a); err != nil {
			return fmt.Errorf("giving the pod address %s: %w", addr, err)
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: Gateway(cidrs[i]).AsSlice(), MTU: mtu, Flags: int(netlink.FLAG_ONLINK)}
		if err := h.RouteAdd(route); err != nil {
			return fmt.Errorf("adding the pod's default route: %w", err)
		}
	}
	return nil
}

// within runs f on a thread in the namespace. The thread ends after it.
func within(netns *os.File, f func(*netlink.Handle) error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread must not serve others again.
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("entering the pod's network namespace: %w", err)
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

// Detach takes a pod's link and host ports away. Its addresses stay its own
// until Free. What is gone already is no error.
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
		linkErr = fmt.Errorf("removing the pod's link: %w", linkErr)
	}
	return errors.Join(err, linkErr)
}

// Traffic is what a pod's link has carried, seen from the pod.
type Traffic struct {
	RxBytes, RxErrors, TxBytes, TxErrors       uint64
	RxPackets, RxDropped, TxPackets, TxDropped uint64
}

// Traffic returns the counters of a pod's link.
func (n *Network) Traffic(id string) (Traffic, error) {
	link, err := n.netlink.LinkByName(n.veth(id))
	if err != nil {
		return Traffic{}, fmt.Errorf("reading the pod's traffic: %w", err)
	}
	s := link.Attrs().Statistics
	if s == nil {
		return Traffic{}, nil
	}
	// What the host's end sends, the pod receives.
	return Traffic{
		RxBytes: s.TxBytes, RxErrors: s.TxErrors, RxPackets: s.TxPackets, RxDropped: s.TxDropped,
		TxBytes: s.RxBytes, TxErrors: s.RxErrors, TxPackets: s.RxPackets, TxDropped: s.RxDropped,
	}, nil
}
