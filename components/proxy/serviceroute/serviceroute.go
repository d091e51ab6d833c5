// Package serviceroute adds routes for service CIDRs on hosts that have no route to them, for
// example without a default route. Without a route, the host cannot reach service addresses,
// because the kernel looks up a route before it evaluates the OUTPUT chain, in which the proxy's
// rules translate the destination. So the service CIDRs are routed to the pods' bridge. No packets
// arrive there, because the rules translate them.
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

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/netlinkutil"
)

// Config configures a Reconciler.
type Config struct {
	// CIDRs is the informer of ServiceCIDRs. The caller starts it.
	CIDRs cache.SharedIndexInformer
	// Bridge is the name of the pods' bridge. It may be created later.
	Bridge string
	// Journal records the routes. Nil records none.
	Journal *hostjournal.Journal
	Log     *slog.Logger
}

// Reconciler adds missing routes when the host's routes or the ServiceCIDRs change. The routes stay
// after Run returns.
type Reconciler struct {
	cfg     Config
	synced  cache.DoneChecker
	changed chan struct{} // buffered: holds one element after the CIDRs changed
}

// New returns a Reconciler and adds its event handler to the informer. CIDRs and Bridge are
// required.
func New(cfg Config) (*Reconciler, error) {
	if cfg.CIDRs == nil || cfg.Bridge == "" {
		return nil, errors.New("service routes: informer and bridge name are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	k := &Reconciler{cfg: cfg, changed: make(chan struct{}, 1)}
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

// Run maintains the routes until ctx is canceled. A failure to add a route is only logged, because
// pods reach services without these routes. If routes cannot be watched at the start, it returns an
// error.
func (k *Reconciler) Run(ctx context.Context) error {
	updates := make(chan netlink.RouteUpdate, 64)
	done := make(chan struct{})
	defer func() {
		close(done)
		for range updates { // the channel is closed when the subscription has ended
		}
	}()
	if err := netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{
		ErrorCallback: func(err error) {
			if ctx.Err() == nil {
				k.cfg.Log.Warn("watch of host routes reported an error; if another program deletes routes to Services, the host may not reach Services until the next ServiceCIDR change, pods are not affected", "err", err)
			}
		},
	}); err != nil {
		close(updates)
		return fmt.Errorf("service routes: watching host routes: %w", err)
	}
	if !cache.WaitFor(ctx, "", k.synced) {
		return nil
	}
	events := updates
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.changed:
		case update, ok := <-events:
			if !ok {
				// The subscription has ended. Changes of ServiceCIDRs are still handled.
				events = nil
				continue
			}
			if !k.isRelevant(update) {
				continue
			}
		}
		if err := k.ensure(k.ranges()); err != nil {
			k.cfg.Log.Warn("adding host routes to Services failed; the host may not reach Services, pods are not affected; retrying when a route is deleted, the bridge of the pods gets a route, or a ServiceCIDR changes", "link", k.cfg.Bridge, "err", err)
		}
	}
}

// isRelevant reports whether a route change may require ensure: any route was deleted, or one was
// added at the bridge, as when the bridge gets an address.
func (k *Reconciler) isRelevant(update netlink.RouteUpdate) bool {
	if update.Type == unix.RTM_DELROUTE {
		return true
	}
	link, err := netlink.LinkByIndex(update.LinkIndex)
	return err == nil && link.Attrs().Name == k.cfg.Bridge
}

// ranges returns the CIDRs of all ServiceCIDRs that are not being deleted.
func (k *Reconciler) ranges() []netip.Prefix {
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

// ensure adds a route for each range to which the kernel has none. It does nothing if the bridge
// does not exist yet.
func (k *Reconciler) ensure(ranges []netip.Prefix) error {
	bridge, err := netlink.LinkByName(k.cfg.Bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil // its creation triggers a route change
	}
	if err != nil {
		return fmt.Errorf("looking up the pods' bridge: %w", err)
	}
	var errs []error
	for _, prefix := range ranges {
		if err := k.ensureOne(bridge, prefix); err != nil {
			errs = append(errs, fmt.Errorf("adding route to service CIDR %s: %w", prefix, err))
		}
	}
	return errors.Join(errs...)
}

// ensureOne adds a route to prefix through the bridge, unless the kernel can already route packets
// there. It does nothing if the bridge has no address of the IP family.
func (k *Reconciler) ensureOne(bridge netlink.Link, prefix netip.Prefix) error {
	// Ask the kernel, because routing rules and tables affect the result.
	_, err := netlink.RouteGet(net.IP(prefix.Addr().Next().AsSlice()))
	if err == nil || !errors.Is(err, unix.ENETUNREACH) {
		return nil
	}
	family := netlink.FAMILY_V4
	if prefix.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	addrs, err := netlinkutil.Addresses(bridge, family)
	if err != nil {
		return fmt.Errorf("listing addresses of the bridge: %w", err)
	}
	source := sourceOf(addrs)
	if source == nil {
		return nil // not assigned yet, or pods do not use this IP family
	}
	if err := k.cfg.Journal.Record(hostjournal.Change{Kind: hostjournal.Route, Name: prefix.String(), Before: k.cfg.Bridge}); err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: bridge.Attrs().Index, Dst: netlinkutil.IPNet(prefix), Src: source, Scope: netlink.SCOPE_LINK}
	if family == netlink.FAMILY_V6 {
		route.Scope = netlink.SCOPE_UNIVERSE
	}
	if err := netlink.RouteReplace(route); err != nil {
		return err
	}
	k.cfg.Log.Info("host route to service CIDR through the pods' bridge added, so that the host reaches Services", "cidr", prefix, "link", k.cfg.Bridge)
	return nil
}

// sourceOf returns the first global unicast address, which becomes the source address of packets
// that use the route. It returns nil if there is none.
func sourceOf(addrs []netlink.Addr) net.IP {
	for _, addr := range addrs {
		if addr.IP.IsGlobalUnicast() {
			return addr.IP
		}
	}
	return nil
}
