// Package serviceroute lets the host itself reach service addresses on a
// machine whose routes lead nowhere near them, such as one without a default
// route. The kernel looks for a route before it asks the OUTPUT chain, where
// the proxy's rules would lead a packet on; without a route it never asks. So
// the range of services is routed to the pods' bridge, where no packet arrives
// as long as the rules lead it elsewhere.
package serviceroute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/hostchange"
	"hyperkube/internal/netdump"
)

// Config of a Keeper.
type Config struct {
	// CIDRs is the informer of ServiceCIDRs, started by who composes the
	// process.
	CIDRs cache.SharedIndexInformer
	// Bridge is the name of the pods' bridge. It may come later.
	Bridge string
	// Journal records the routes; nil records none.
	Journal *hostchange.Journal
	Log     *slog.Logger
}

// Keeper adds the routes that are missing whenever the host's routes or the
// ranges of services change. Those that it made stay when it ends.
type Keeper struct {
	cfg     Config
	synced  cache.DoneChecker
	changed chan struct{} // has one element when the ranges changed
}

// New validates cfg.
func New(cfg Config) (*Keeper, error) {
	if cfg.CIDRs == nil || cfg.Bridge == "" {
		return nil, errors.New("service routes: an informer and the name of a bridge are needed")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	k := &Keeper{cfg: cfg, changed: make(chan struct{}, 1)}
	touch := func(any) {
		select {
		case k.changed <- struct{}{}:
		default:
		}
	}
	registration, err := cfg.CIDRs.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: touch, UpdateFunc: func(_, obj any) { touch(obj) },
	})
	if err != nil {
		return nil, fmt.Errorf("service routes: %w", err)
	}
	k.synced = registration.HasSyncedChecker()
	return k, nil
}

// Run keeps the routes until ctx ends. That routes cannot be made stops
// nothing else: pods reach services without them.
func (k *Keeper) Run(ctx context.Context) error {
	updates := make(chan netlink.RouteUpdate, 64)
	done := make(chan struct{})
	defer func() {
		close(done)
		for range updates { // it ends when the subscription has
		}
	}()
	if err := netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{
		ErrorCallback: func(err error) {
			if ctx.Err() == nil {
				k.cfg.Log.Warn("a change of the host's routes was missed", "err", err)
			}
		},
	}); err != nil {
		close(updates)
		return fmt.Errorf("service routes: watching the host's routes: %w", err)
	}
	if !cache.WaitFor(ctx, "", k.synced) {
		return nil
	}
	told := updates
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.changed:
		case update, ok := <-told:
			if !ok {
				// The subscription is gone; ranges are still looked after.
				told = nil
				continue
			}
			if !k.concerns(update) {
				continue
			}
		}
		if err := k.ensure(k.ranges()); err != nil {
			k.cfg.Log.Warn("the host may not reach service addresses", "err", err)
		}
	}
}

// concerns tells whether what is there for services may have changed: the
// bridge got an address, or a route went.
func (k *Keeper) concerns(update netlink.RouteUpdate) bool {
	if update.Type == unix.RTM_DELROUTE {
		return true
	}
	link, err := netlink.LinkByIndex(update.LinkIndex)
	return err == nil && link.Attrs().Name == k.cfg.Bridge
}

// ranges are those of all services.
func (k *Keeper) ranges() []netip.Prefix {
	var out []netip.Prefix
	for _, obj := range k.cfg.CIDRs.GetStore().List() {
		cidr, ok := obj.(*networkingv1.ServiceCIDR)
		if !ok || cidr.DeletionTimestamp != nil {
			continue
		}
		for _, text := range cidr.Spec.CIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				out = append(out, prefix.Masked())
			}
		}
	}
	return out
}

// ensure adds a route for each range that the kernel has no way to.
func (k *Keeper) ensure(ranges []netip.Prefix) error {
	bridge, err := netlink.LinkByName(k.cfg.Bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil // its coming is a change of routes
	}
	if err != nil {
		return fmt.Errorf("looking for the pods' bridge: %w", err)
	}
	var errs []error
	for _, prefix := range ranges {
		if err := k.ensureOne(bridge, prefix); err != nil {
			errs = append(errs, fmt.Errorf("routing services' %s: %w", prefix, err))
		}
	}
	return errors.Join(errs...)
}

func (k *Keeper) ensureOne(bridge netlink.Link, prefix netip.Prefix) error {
	// The kernel knows best what is covered: rules and tables have a say.
	_, err := netlink.RouteGet(net.IP(prefix.Addr().Next().AsSlice()))
	if err == nil || !errors.Is(err, unix.ENETUNREACH) {
		return nil
	}
	family := netlink.FAMILY_V4
	if prefix.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	addrs, err := netdump.Addresses(bridge, family)
	if err != nil {
		return fmt.Errorf("listing the bridge's addresses: %w", err)
	}
	source := sourceOf(addrs)
	if source == nil {
		return nil // not yet, or not a family that pods have
	}
	if err := k.cfg.Journal.Record(hostchange.Change{Kind: hostchange.Route, Name: prefix.String(), Before: k.cfg.Bridge}); err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: bridge.Attrs().Index, Dst: netdump.IPNet(prefix), Src: source, Scope: netlink.SCOPE_LINK}
	if family == netlink.FAMILY_V6 {
		route.Scope = netlink.SCOPE_UNIVERSE
	}
	if err := netlink.RouteReplace(route); err != nil {
		return err
	}
	k.cfg.Log.Info("no route of this host leads to services: they are routed to the pods' bridge", "range", prefix, "link", k.cfg.Bridge)
	return nil
}

// sourceOf is the first address by which others can answer, nil if there is
// none.
func sourceOf(addrs []netlink.Addr) net.IP {
	for _, addr := range addrs {
		if addr.IP.IsGlobalUnicast() {
			return addr.IP
		}
	}
	return nil
}
