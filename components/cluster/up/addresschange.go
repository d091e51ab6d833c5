package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/host/netlinkutil"
)

// When the machine loses an address of the node, for example because it moves to another network, the certificates, the
// Node and the endpoints of the API server contain an address that does not work anymore. The main process then executes
// its own binary again, as after a full disk, and starts with the new addresses. The runtime and the pods keep running.

// settleTime is how long the addresses of the machine must not change before the cluster follows a change. A DHCP client
// removes an address and adds another one within this time.
const settleTime = 3 * time.Second

// resubscribeDelay is the delay before changes of addresses are watched again after the kernel has ended the watch, for
// example because too many changes were reported at the same time.
const resubscribeDelay = 2 * time.Second

// addressChange is the error that stops a cluster because the addresses of its node changed.
type addressChange struct {
	before, after []netip.Addr
}

// Error describes the change.
func (e *addressChange) Error() string {
	return fmt.Sprintf("the addresses of the node changed from %s to %s",
		strings.Join(clusterconfig.Strings(e.before), ","), strings.Join(clusterconfig.Strings(e.after), ","))
}

// addressFollower detects that the addresses of the node must change. It is a lifecycle.Component.
type addressFollower struct {
	// current are the addresses of the node, one for each IP family of podCIDRs in the same order.
	current  []netip.Addr
	podCIDRs []string
	log      *slog.Logger
}

// Run waits until the machine has lost an address of the node and has another one. It then returns an
// *addressChange, which makes the main process start again. It returns nil when ctx is done.
func (f *addressFollower) Run(ctx context.Context) error {
	for {
		err := f.watch(ctx)
		if change, ok := errors.AsType[*addressChange](err); ok {
			return change
		}
		if ctx.Err() != nil {
			return nil
		}
		f.log.Warn("watching the addresses of the machine failed; if the node loses its address, the cluster is not restarted with another one until a retry succeeds, retrying", "after", resubscribeDelay, "err", err)
		if !lifecycle.Pause(ctx, resubscribeDelay) {
			return nil
		}
	}
}

// watch waits for changes of the machine's addresses until ctx is done, when it returns nil. It returns an
// *addressChange if the cluster must start with other addresses, or the error that ended the watch.
func (f *addressFollower) watch(ctx context.Context) error {
	failure := errors.New("the kernel has ended the subscription")
	updates, done := make(chan netlink.AddrUpdate, 64), make(chan struct{})
	if err := netlink.AddrSubscribeWithOptions(updates, done, netlink.AddrSubscribeOptions{
		// Called before updates is closed.
		ErrorCallback: func(err error) { failure = err },
	}); err != nil {
		return err
	}
	defer func() {
		close(done)
		for range updates { // the channel is closed when the subscription has ended
		}
	}()
	// The first check covers changes before the subscription.
	settled := time.NewTimer(settleTime)
	defer settled.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-updates:
			if !ok {
				return failure
			}
			settled.Reset(settleTime)
		case <-settled.C:
			after, err := f.desired()
			if err != nil {
				return err
			}
			if !slices.Equal(after, f.current) {
				return &addressChange{before: f.current, after: after}
			}
		}
	}
}

// desired returns the addresses that the node should have now: those that chooseAddresses selects from the
// addresses of this machine.
func (f *addressFollower) desired() ([]netip.Addr, error) {
	machine, err := clusterconfig.NodeAddresses(f.podCIDRs)
	if err != nil {
		return nil, err
	}
	list, err := netlinkutil.Addresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of the machine: %w", err)
	}
	assigned := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			assigned = append(assigned, addr.Unmap())
		}
	}
	fallbacks, err := withGateways(nil, f.podCIDRs)
	if err != nil {
		return nil, err
	}
	return chooseAddresses(f.current, fallbacks, machine, assigned), nil
}

// chooseAddresses returns the addresses that a node with the addresses current should have, one for each IP family in the
// same order. fallbacks are the addresses of a machine without another address, machine contains at most one address for
// each family, and assigned all addresses of links. An address that the machine still has is kept, even if the machine now
// prefers another one, unless it is a fallback. An address that it lost is kept until the machine has another one, so that
// a node whose cable is unplugged does not change twice.
func chooseAddresses(current, fallbacks, machine, assigned []netip.Addr) []netip.Addr {
	out := slices.Clone(current)
	for i, addr := range current {
		if slices.Contains(assigned, addr) && !slices.Contains(fallbacks, addr) {
			continue
		}
		if at := slices.IndexFunc(machine, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }); at >= 0 {
			out[i] = machine[at]
		}
	}
	return out
}
