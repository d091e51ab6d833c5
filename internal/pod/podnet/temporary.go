package podnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hyperkube/internal/host/netlinkutil"
)

// WithTemporaryPod calls f with a network namespace that is connected to the bridge like that of a pod, and removes it
// afterwards. It is for diagnosis: f tests which connections of pods work. The pod network must be set up in the network
// namespace of the caller; cfg needs the fields Bridge, LinkPrefix and AddressDir.
//
// The namespace has the highest address of each pod CIDR that no pod uses. The address is not reserved, because pods get
// the lowest addresses, and f should return soon. If the process is killed, the kernel removes the namespace and its link.
func WithTemporaryPod(cfg Config, f func(netns *os.File) error) (err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening netlink: %w", err)
	}
	defer h.Close()
	bridge, err := h.LinkByName(cfg.Bridge)
	if err != nil {
		return fmt.Errorf("finding the pod bridge %s: %w", cfg.Bridge, err)
	}
	have, err := netlinkutil.List(func() ([]netlink.Addr, error) { return h.AddrList(bridge, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("listing bridge addresses: %w", err)
	}
	var cidrs []netip.Prefix
	var addrs []netip.Addr
	for _, a := range have {
		if p := netlinkutil.Prefix(a.IPNet); !p.Addr().IsLinkLocalUnicast() {
			cidrs, addrs = append(cidrs, p.Masked()), append(addrs, highestFree(cfg.AddressDir, p.Masked()))
		}
	}
	if len(addrs) == 0 {
		return fmt.Errorf("the pod bridge %s has no address", cfg.Bridge)
	}
	netns, err := newNamespace()
	if err != nil {
		return err
	}
	defer netns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = cfg.LinkPrefix + "-t" + strconv.Itoa(os.Getpid())
	attrs.MasterIndex, attrs.MTU, attrs.TxQLen, attrs.Flags = bridge.Attrs().Index, bridge.Attrs().MTU, -1, net.FlagUp
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: PodLink, PeerHardwareAddr: hardwareAddr(addrs[0]), PeerMTU: uint32(attrs.MTU),
		PeerNamespace: netlink.NsFd(int(netns.Fd())),
	}
	if err := h.LinkAdd(veth); err != nil {
		return fmt.Errorf("creating link %s: %w", attrs.Name, err)
	}
	defer func() {
		if removeErr := h.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: attrs.Name}}); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("removing link %s: %w", attrs.Name, removeErr))
		}
	}()
	if err := within(netns, func(inside *netlink.Handle) error {
		return errors.Join(loopbackUp(inside), configure(inside, addrs, cidrs, 0))
	}); err != nil {
		return err
	}
	return f(netns)
}

// highestFree returns the highest address of cidr that is not in dir, the directory of allocated addresses, except the
// broadcast address.
func highestFree(dir string, cidr netip.Prefix) netip.Addr {
	addr := lastOf(cidr).Prev()
	for cidr.Contains(addr) {
		if _, err := os.Stat(filepath.Join(dir, addr.String())); err != nil {
			break
		}
		addr = addr.Prev()
	}
	return addr
}

// newNamespace creates a network namespace, which exists as long as the returned file is open or a process is in it.
func newNamespace() (*os.File, error) {
	type result struct {
		file *os.File
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// Not unlocked, so that the thread exits and is not reused.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{nil, fmt.Errorf("creating a network namespace: %w", err)}
			return
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		done <- result{file, err}
	}()
	r := <-done
	return r.file, r.err
}
