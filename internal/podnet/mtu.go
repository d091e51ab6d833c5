package podnet

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"hyperkube/internal/netdump"
)

// ethernet is the MTU of links that are made without one.
const ethernet = 1500

// setMTU gives the bridge, which was just made, the MTU that all pods' links
// are going to have: one for all, for a bridge drops what is too large for the
// link that it goes to, and tells nobody.
func (n *Network) setMTU(bridge netlink.Link) error {
	mtu := n.cfg.MTU
	if mtu == 0 {
		var err error
		if mtu, err = n.outMTU(); err != nil {
			return err
		}
	}
	if mtu == bridge.Attrs().MTU {
		return nil
	}
	// Said so, the kernel does not change it as links come and go.
	if err := n.netlink.LinkSetMTU(bridge, mtu); err != nil {
		return fmt.Errorf("setting the MTU of the pods' bridge to %d: %w", mtu, err)
	}
	bridge.Attrs().MTU = mtu
	return nil
}

// outMTU is that of the links by which packets leave the machine, the smallest
// if there are several.
func (n *Network) outMTU() (int, error) {
	routes, err := netdump.Whole(func() ([]netlink.Route, error) { return n.netlink.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return 0, fmt.Errorf("listing the host's routes: %w", err)
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
			continue // it went, or there are several
		}
		if m := link.Attrs().MTU; link.Attrs().Name != "lo" && m > 0 && (mtu == 0 || m < mtu) {
			mtu = m
		}
	}
	if mtu == 0 {
		mtu = ethernet
	}
	return mtu, nil
}

// offNodeMTU is how large packets may be that a pod sends to others than those
// of its node; zero: as large as its link lets through.
func (n *Network) offNodeMTU(own int) (int, error) {
	if n.cfg.Tunnel == "" {
		return 0, nil
	}
	tunnel, err := n.netlink.LinkByName(n.cfg.Tunnel)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("finding link %s: %w", n.cfg.Tunnel, err)
	}
	if mtu := tunnel.Attrs().MTU; mtu < own {
		return mtu, nil
	}
	return 0, nil
}
