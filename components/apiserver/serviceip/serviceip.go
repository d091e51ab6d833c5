// Package serviceip allocates cluster IPs and node ports for Services. The allocation is part of
// the transaction that writes the Service: Hook returns the operations that write the IPAddress
// objects and the port bitmap. The comparisons of the transaction prevent double allocation,
// regardless of concurrent writes and process crashes.
//
//   - An allocated address is an IPAddress object with that name. It is created with
//     the condition that it does not exist.
//   - Allocated ports are bits of the object ranges/servicenodeports, in
//     upstream's format. It is replaced with the condition that it has not changed
//     since it was read. If many concurrent creations used the same version,
//     only one could succeed. Therefore Hook delays each
//     allocation until the previous one is committed, see allocationQueue.
//
// Run repairs inconsistencies caused by other servers or by manual changes.
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

// Config contains the collections of the store, the Service ranges and the node port range of an Allocator, which
// allocates cluster IPs and node ports of Services.
type Config struct {
	// Store is the store that contains the collections below, and to which Repair commits.
	Store *store.Store
	// Services and IPAddresses are the collections of these resources.
	Services, IPAddresses *store.Collection
	// ServiceCIDRs is the collection of ServiceCIDR objects, which define ranges in addition to
	// CIDRs. It may be nil.
	ServiceCIDRs *store.Collection
	// CIDRs are the configured Service ranges: one, or one per family. The family of the first one
	// is the default family of Services.
	CIDRs []netip.Prefix
	// NodePorts is the range of node ports. Zero means 30000-32767.
	NodePorts utilnet.PortRange
	// Log receives messages about repairs. Nil means slog's default.
	Log *slog.Logger
}

// Allocator allocates cluster IPs and node ports to Services, as a part of the transactions that
// write the Services. It is safe for concurrent use.
type Allocator struct {
	cfg    Config
	ranges *store.Collection
	queue  *allocationQueue
	log    *slog.Logger
	counts counts
}

// New validates cfg and returns an Allocator. It starts to fill the caches that Hook needs.
func New(cfg Config) (*Allocator, error) {
	if cfg.Store == nil || cfg.Services == nil || cfg.IPAddresses == nil {
		return nil, errors.New("service addresses: a store and the collections of services and ipaddresses are required")
	}
	if len(cfg.CIDRs) == 0 || len(cfg.CIDRs) > 2 {
		return nil, fmt.Errorf("service addresses: %d ranges, want one or one per IP family", len(cfg.CIDRs))
	}
	for i, c := range cfg.CIDRs {
		if !c.IsValid() || c.Masked() != c {
			return nil, fmt.Errorf("service addresses: %s is not a CIDR", c)
		}
		if i > 0 && c.Addr().Is4() == cfg.CIDRs[0].Addr().Is4() {
			return nil, fmt.Errorf("service addresses: %s and %s are of the same IP family", cfg.CIDRs[0], c)
		}
	}
	if cfg.NodePorts == (utilnet.PortRange{}) {
		cfg.NodePorts = utilnet.PortRange{Base: 30000, Size: 2768}
	}
	if cfg.NodePorts.Base < 1 || cfg.NodePorts.Size < 1 || cfg.NodePorts.Base+cfg.NodePorts.Size > 65536 {
		return nil, fmt.Errorf("service addresses: %s is not a port range", cfg.NodePorts.String())
	}
	a := &Allocator{
		cfg:    cfg,
		ranges: cfg.Store.Collection(rangesConfig()),
		queue:  newAllocationQueue(),
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

// Hook is the registry.Hook for Services: it is called for each attempt to write a Service, and the returned
// operations become part of the write's transaction. It sets missing IP families, cluster IPs and node ports of obj,
// allocates explicitly requested ones, and releases those of old that obj does not have anymore. obj is nil on
// delete, old is nil on create. It returns an API error if a requested address or port is invalid or in use, or if
// none is free.
func (a *Allocator) Hook(ctx context.Context, obj, old api.Object) ([]store.Op, error) {
	is, _ := obj.(*corev1.Service)
	was, _ := old.(*corev1.Service)
	w := &write{Allocator: a, obj: is, old: was}
	defer w.updateMetrics()
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

// write is one attempt to write a Service, with the operations that allocate and release its addresses and ports.
// After a conflict, the next attempt is a new write.
type write struct {
	*Allocator
	// obj is nil on delete, old is nil on create.
	obj, old *corev1.Service
	ops      []store.Op
	// got and failed are the successful and failed allocations of this attempt.
	got, failed []allocation
}

// family returns the IP family of an address.
func family(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// configured reports whether the cluster has a configured Service range of the family f.
func (a *Allocator) configured(f corev1.IPFamily) bool {
	for _, c := range a.cfg.CIDRs {
		if family(c.Addr()) == f {
			return true
		}
	}
	return false
}
