// Package serviceip gives Services their cluster addresses and node ports. It
// does so in the Service's own transaction: Hook returns the operations that
// write the IPAddress objects and the bitmap of ports beside it, and their
// comparisons are what keeps anything from being given twice, whatever runs at
// the same time and wherever a process dies.
//
//   - An address in use is an IPAddress object of that name. It is created with
//     the comparison that it does not exist.
//   - Ports in use are bits of the object at ranges/servicenodeports, in
//     upstream's form. It is replaced with the comparison that it is still the
//     one that the choice was made from. So that many creations at once do not
//     all choose from the same version, which one only can win, Hook lets the
//     next choose when the last choice is in, see turn.
//
// Run mends what another server, or someone's hand, has left behind.
package serviceip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// Config of an Allocator.
type Config struct {
	// Store has all collections.
	Store *store.Store
	// Services and IPAddresses are the collections of those resources.
	Services, IPAddresses *store.Collection
	// ServiceCIDRs is where more ranges are found than CIDRs; it may be nil.
	ServiceCIDRs *store.Collection
	// CIDRs are the default ranges: one, or one of each family. Services
	// that name no family get the first one's.
	CIDRs []netip.Prefix
	// NodePorts is the range of node ports; zero means 30000-32767.
	NodePorts utilnet.PortRange
	// Log receives what is mended; nil: slog's default.
	Log *slog.Logger
}

// Allocator is safe for use by several goroutines.
type Allocator struct {
	cfg    Config
	ranges *store.Collection
	turn   *turn
	log    *slog.Logger
	counts counts
}

// New validates cfg and begins to fill the caches that Hook needs.
func New(cfg Config) (*Allocator, error) {
	if cfg.Store == nil || cfg.Services == nil || cfg.IPAddresses == nil {
		return nil, errors.New("service addresses: a store and the collections of services and ipaddresses are required")
	}
	if len(cfg.CIDRs) == 0 || len(cfg.CIDRs) > 2 {
		return nil, fmt.Errorf("service addresses: %d ranges, want one or one of each family", len(cfg.CIDRs))
	}
	for i, c := range cfg.CIDRs {
		if !c.IsValid() || c.Masked() != c {
			return nil, fmt.Errorf("service addresses: %s is not a range", c)
		}
		if i > 0 && c.Addr().Is4() == cfg.CIDRs[0].Addr().Is4() {
			return nil, fmt.Errorf("service addresses: %s and %s are of one family", cfg.CIDRs[0], c)
		}
	}
	if cfg.NodePorts == (utilnet.PortRange{}) {
		cfg.NodePorts = utilnet.PortRange{Base: 30000, Size: 2768}
	}
	if cfg.NodePorts.Base < 1 || cfg.NodePorts.Size < 1 || cfg.NodePorts.Base+cfg.NodePorts.Size > 65536 {
		return nil, fmt.Errorf("service addresses: %s is not a range of ports", cfg.NodePorts.String())
	}
	a := &Allocator{
		cfg:    cfg,
		ranges: cfg.Store.Collection(rangesConfig()),
		turn:   newTurn(),
		log:    cfg.Log,
	}
	if a.log == nil {
		a.log = slog.Default()
	}
	a.ranges.Warm()
	cfg.IPAddresses.Warm()
	if cfg.ServiceCIDRs != nil {
		cfg.ServiceCIDRs.Warm()
	}
	return a, nil
}

// Hook is a registry.Hook for services: it sets the families, addresses and
// node ports of obj that are unset, takes those that are set, and frees what
// obj has not got any more of old.
func (a *Allocator) Hook(ctx context.Context, obj, old api.Object) ([]store.Op, error) {
	is, _ := obj.(*corev1.Service)
	was, _ := old.(*corev1.Service)
	w := &write{Allocator: a, is: is, was: was}
	defer w.counted()
	if is != nil {
		if err := w.initFamilies(); err != nil {
			return nil, err
		}
	}
	if err := w.addresses(ctx); err != nil {
		return nil, err
	}
	if err := w.nodePorts(ctx); err != nil {
		return nil, err
	}
	return w.ops, nil
}

// write is one attempt of one write of a service.
type write struct {
	*Allocator
	// is nil on delete, was nil on create.
	is, was *corev1.Service
	ops     []store.Op
	// got and failed are the addresses and ports that this attempt chose, and could
	// not have.
	got, failed []allocation
}

// family of an address or range.
func family(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// configured tells whether the cluster has addresses of a family for services.
func (a *Allocator) configured(f corev1.IPFamily) bool {
	for _, c := range a.cfg.CIDRs {
		if family(c.Addr()) == f {
			return true
		}
	}
	return false
}
