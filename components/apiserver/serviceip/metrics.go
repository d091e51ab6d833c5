package serviceip

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"hyperkube/internal/store"
)

// Scopes of allocations: explicitly requested, and chosen by the allocator.
const (
	static  = "static"
	dynamic = "dynamic"
)

// allocation is an address or port that a write has requested, for metrics: the range of the
// address, the scope (static or dynamic), and how long the allocation of an address took.
type allocation struct {
	cidr, scope string // an empty cidr means a port
	took        time.Duration
}

// counts contains upstream's metrics about allocations. Its metrics are created at first use.
type counts struct {
	once                    sync.Once
	addresses, addressFails *prometheus.CounterVec
	ports, portFails        *prometheus.CounterVec
	portRepairErrors        prometheus.Counter
	took                    *prometheus.HistogramVec
}

// vectors returns c after it has created the metrics at the first call.
func (c *counts) vectors() *counts {
	c.once.Do(func() {
		counter := func(name, help string, labels ...string) *prometheus.CounterVec {
			return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kube_apiserver_" + name, Help: "[ALPHA] " + help}, labels)
		}
		c.addresses = counter("clusterip_allocator_allocation_total", "Number of Cluster IPs allocations", "cidr", "scope")
		c.addressFails = counter("clusterip_allocator_allocation_errors_total", "Number of errors trying to allocate Cluster IPs", "cidr", "scope")
		c.ports = counter("nodeport_allocator_allocation_total", "Number of NodePort allocations", "scope")
		c.portFails = counter("nodeport_allocator_allocation_errors_total", "Number of errors trying to allocate NodePort", "scope")
		c.portRepairErrors = prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_nodeport_repair_reconcile_errors_total", Help: "[ALPHA] Number of reconciliation failures on the nodeport repair reconcile loop",
		})
		c.took = prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kube_apiserver_clusterip_allocator_allocation_duration_seconds", Help: "[ALPHA] Duration in seconds to allocate a Cluster IP by ServiceCIDR",
			Buckets: prometheus.DefBuckets,
		}, []string{"cidr"})
	})
	return c
}

// recordAddress records the result err of allocating an address of the family f, for updateMetrics.
// The metrics are by range: that of the address or, if address is "" or in no range, the first one.
// began is the start of the allocation.
func (w *write) recordAddress(ctx context.Context, scope, address string, f corev1.IPFamily, began time.Time, err error) {
	a := allocation{scope: scope, took: time.Since(began)}
	ranges, _ := w.cidrs(ctx, f) // best effort
	addr, _ := parse(address)    // an invalid address is in no range
	for _, r := range ranges {
		if a.cidr == "" || r.prefix.Contains(addr) {
			a.cidr = r.prefix.String()
			if r.prefix.Contains(addr) {
				break
			}
		}
	}
	switch {
	case a.cidr == "":
	case err != nil:
		w.failed = append(w.failed, a)
	default:
		w.got = append(w.got, a)
	}
}

// recordPort records the result of allocating a node port, for updateMetrics.
func (w *write) recordPort(scope string, err error) {
	if err != nil {
		w.failed = append(w.failed, allocation{scope: scope})
	} else {
		w.got = append(w.got, allocation{scope: scope})
	}
}

// updateMetrics adds the recorded allocations to the metrics. It is called once at the end of each
// attempt to write a Service.
func (w *write) updateMetrics() {
	if len(w.got) == 0 && len(w.failed) == 0 {
		return
	}
	c := w.counts.vectors()
	for _, a := range w.got {
		if a.cidr == "" {
			c.ports.WithLabelValues(a.scope).Inc()
			continue
		}
		c.addresses.WithLabelValues(a.cidr, a.scope).Inc()
		c.took.WithLabelValues(a.cidr).Observe(a.took.Seconds())
	}
	for _, a := range w.failed {
		if a.cidr == "" {
			c.portFails.WithLabelValues(a.scope).Inc()
			continue
		}
		c.addressFails.WithLabelValues(a.cidr, a.scope).Inc()
	}
}

// scrapeTimeout limits how long a scrape of the metrics waits for the caches of IPAddresses and
// ports.
const scrapeTimeout = time.Second

var (
	addressesUsed = prometheus.NewDesc("kube_apiserver_clusterip_allocator_allocated_ips",
		"[ALPHA] Gauge measuring the number of allocated IPs for Services", []string{"cidr"}, nil)
	addressesFree = prometheus.NewDesc("kube_apiserver_clusterip_allocator_available_ips",
		"[ALPHA] Gauge measuring the number of available IPs for Services", []string{"cidr"}, nil)
	portsUsed = prometheus.NewDesc("kube_apiserver_nodeport_allocator_allocated_ports",
		"[ALPHA] Gauge measuring the number of allocated NodePorts for Services", nil, nil)
	portsFree = prometheus.NewDesc("kube_apiserver_nodeport_allocator_available_ports",
		"[ALPHA] Gauge measuring the number of available NodePorts for Services", nil, nil)
)

// Describe implements prometheus.Collector. It describes the allocation counters, and the numbers
// of used and free addresses and ports.
func (a *Allocator) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{addressesUsed, addressesFree, portsUsed, portsFree} {
		ch <- d
	}
	c := a.counts.vectors()
	for _, v := range []prometheus.Collector{c.addresses, c.addressFails, c.ports, c.portFails, c.portRepairErrors, c.took} {
		v.Describe(ch)
	}
}

// Collect implements prometheus.Collector. It counts the used and free addresses and ports in the
// caches. It omits them if a cache is not available within scrapeTimeout.
func (a *Allocator) Collect(ch chan<- prometheus.Metric) {
	c := a.counts.vectors()
	for _, v := range []prometheus.Collector{c.addresses, c.addressFails, c.ports, c.portFails, c.portRepairErrors, c.took} {
		v.Collect(ch)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	if all, err := a.inUse(ctx); err == nil {
		for _, u := range all {
			ch <- prometheus.MustNewConstMetric(addressesUsed, prometheus.GaugeValue, float64(u.used), u.prefix.String())
			ch <- prometheus.MustNewConstMetric(addressesFree, prometheus.GaugeValue, float64(u.size-min(u.used, u.size)), u.prefix.String())
		}
	}
	if p, _, err := a.load(ctx, 0); err == nil {
		used := p.count()
		ch <- prometheus.MustNewConstMetric(portsUsed, prometheus.GaugeValue, float64(used))
		ch <- prometheus.MustNewConstMetric(portsFree, prometheus.GaugeValue, float64(a.cfg.NodePorts.Size-used))
	}
}

// usage is a range of Service addresses with the number of its addresses that are allocated.
type usage struct {
	allocationRange
	used uint64
}

// inUse returns all Service ranges with the number of IPAddress objects in them, according to the cache. An address
// is counted only for the first range that contains it. It returns an error if a cache is not filled before ctx is
// done.
func (a *Allocator) inUse(ctx context.Context) ([]usage, error) {
	var all []usage
	for _, f := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		ranges, err := a.cidrs(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, r := range ranges {
			all = append(all, usage{allocationRange: r})
		}
	}
	page, err := a.cfg.IPAddresses.List(ctx, store.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, e := range page.Entries {
		addr, err := netip.ParseAddr(e.Key())
		if err != nil {
			continue
		}
		for i := range all {
			if all[i].prefix.Contains(addr) {
				all[i].used++
				break
			}
		}
	}
	return all, nil
}
