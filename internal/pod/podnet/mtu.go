package podnet

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"hyperkube/internal/host/netlinkutil"
)

// defaultMTU is the MTU of pod links if the host has no default route.
const defaultMTU = 1500

// setMTU sets the MTU of the bridge, which was just created. Links of pods get the same MTU,
// because a bridge silently drops packets that are too large for the outgoing link.
func (n *Network) setMTU(bridge netlink.Link) error {
	mtu := n.cfg.MTU
	if mtu == 0 {
		var err error
		if mtu, err = n.defaultRouteMTU(); err != nil {
			return err
		}
	}
	if mtu == bridge.Attrs().MTU {
		return nil
	}
	// An explicitly set MTU is not changed by the kernel when links are added and removed.
	if err := n.netlink.LinkSetMTU(bridge, mtu); err != nil {
		return fmt.Errorf("setting MTU of the pod bridge to %d: %w", mtu, err)
	}
	bridge.Attrs().MTU = mtu
	return nil
}

// defaultRouteMTU returns the smallest MTU of the links with a default route, or defaultMTU if
// there is none.
func (n *Network) defaultRouteMTU() (int, error) {
	routes, err := netlinkutil.List(func() ([]netlink.Route, error) { return n.netlink.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return 0, fmt.Errorf("listing host routes: %w", err)
	}
	mtu := 0
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		link, err := n.netlink.LinkByIndex(r.LinkIndex)
		if err != nil {
			continue // link removed, or multipath route
		}
		if m := link.Attrs().MTU; link.Attrs().Name != "lo" && m > 0 && (mtu == 0 || m < mtu) {
			mtu = m
		}
	}
	if mtu == 0 {
		mtu = defaultMTU
	}
	return mtu, nil
}

// offNodeMTU returns the MTU for packets from pods to destinations outside of the node, which is the smallest one of
// the tunnels that exist. It returns zero if no tunnel limits the MTU of pod links, linkMTU.
func (n *Network) offNodeMTU(linkMTU int) (int, error) {
	smallest := linkMTU
	for _, name := range n.cfg.Tunnels {
		tunnel, err := n.netlink.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("finding link %s: %w", name, err)
		}
		smallest = min(smallest, tunnel.Attrs().MTU)
	}
	if smallest == linkMTU {
		return 0, nil
	}
	return smallest, nil
}
