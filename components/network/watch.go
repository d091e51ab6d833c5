package network

import (
	"context"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// watchHost returns a channel that receives an element when routes of this package may be missing: one was deleted, a link
// got an address, or a tunnel link was deleted or set down. The kernel reports no deleted routes in the last two cases. The
// channel is closed when ctx is canceled, or when a netlink subscription overflows, after which the caller must call watchHost
// again.
func (n *Network) watchHost(ctx context.Context) (<-chan struct{}, error) {
	ctx, cancel := context.WithCancel(ctx) // cancelling closes the sockets
	failed := func(err error) {
		if ctx.Err() == nil {
			n.cfg.Log.Warn("watch of host routes or links reported an error; if the watch has ended, routes to pods of other nodes are restored and watched again in 2 seconds", "err", err)
		}
	}
	routes := make(chan netlink.RouteUpdate, 64)
	if err := netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: failed}); err != nil {
		cancel()
		return nil, err
	}
	links := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: failed}); err != nil {
		cancel()
		for range routes { // the channel is closed when the subscription has ended
		}
		return nil, err
	}
	out := make(chan struct{}, 1)
	touch := func() {
		select {
		case out <- struct{}{}:
		default:
		}
	}
	var receivers sync.WaitGroup
	receivers.Go(func() {
		defer cancel()
		for u := range routes {
			deleted := u.Type == unix.RTM_DELROUTE && u.Protocol == routeProtocol
			created := u.Type == unix.RTM_NEWROUTE && u.Protocol == unix.RTPROT_KERNEL
			if deleted || created {
				touch()
			}
		}
	})
	receivers.Go(func() {
		defer cancel()
		for u := range links {
			name := u.Attrs().Name
			down := u.Header.Type == unix.RTM_DELLINK || u.IfInfomsg.Flags&unix.IFF_UP == 0
			if down && (name == n.cfg.Tunnel || name == n.cfg.WireGuard) {
				touch()
			}
		}
	})
	go func() {
		receivers.Wait()
		close(out)
	}()
	return out, nil
}
