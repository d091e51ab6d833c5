// Package proxy is the service proxy: it leads traffic for services to their
// endpoints by iptables rules, as kube-proxy does in its iptables mode.
// https://kubernetes.io/docs/reference/networking/virtual-ips/
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sort"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/client"
	"hyperkube/internal/hostchange"
)

// Config of a Proxy.
type Config struct {
	// Clients of system:kube-proxy; their informers are started by who
	// composes the process.
	Clients *client.Clients
	// NodeName tells which endpoints are near.
	NodeName string
	// PodCIDRs of the whole cluster.
	PodCIDRs []netip.Prefix
	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool
	// LocalhostNodePorts makes node ports answer on 127.0.0.1.
	LocalhostNodePorts bool
	// MinSyncPeriod is the least time between two writes; zero is a default.
	MinSyncPeriod time.Duration
	// SyncPeriod is how often everything is written again, whatever others have
	// made of it; zero: never.
	SyncPeriod time.Duration
	// MasqueradeBit of packets' marks asks for masquerading; zero is bit 14.
	MasqueradeBit uint
	// NodePortRanges are those of the node's addresses on which node ports
	// answer; none: all.
	NodePortRanges []netip.Prefix
	// Profiling serves /debug/pprof beside the metrics.
	Profiling bool
	// HealthzAddress and MetricsAddress to serve on; empty serves none.
	HealthzAddress, MetricsAddress string
	// Journal records the changes to the host; nil records none.
	Journal *hostchange.Journal
	Log     *slog.Logger
}

// Proxy keeps the rules as services and endpoints are.
type Proxy struct {
	cfg      Config
	services cache.SharedIndexInformer
	slices   cache.SharedIndexInformer
	nodes    cache.SharedIndexInformer
	synced   []cache.DoneChecker
	dirty    chan struct{} // has one element when something changed
	ready    chan struct{}
	started  time.Time
	writers  map[bool]*writer // by IPv6
	health   *health
	metrics  *metrics

	mu sync.Mutex // guards what follows
	// changed are the services ("namespace/name") whose ports are to be
	// made anew.
	changed map[string]bool
	// triggered is when something happened to pods that endpoints now tell of.
	triggered []time.Time
	zone      string

	// Owned by the goroutine of Run.
	ports map[bool]map[string][]*rules.Port // by IPv6, then by service
}

const byService = "proxy-service"

// New validates cfg and asks its informers for what is needed.
func New(cfg Config) (*Proxy, error) {
	if cfg.Clients == nil || cfg.NodeName == "" {
		return nil, errors.New("proxy: clients and a node name are needed")
	}
	if cfg.MinSyncPeriod == 0 {
		cfg.MinSyncPeriod = 50 * time.Millisecond
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	p := &Proxy{
		cfg:      cfg,
		services: cfg.Clients.Informers.Core().V1().Services().Informer(),
		slices:   cfg.Clients.Informers.Discovery().V1().EndpointSlices().Informer(),
		nodes:    cfg.Clients.Informers.Core().V1().Nodes().Informer(),
		dirty:    make(chan struct{}, 1),
		ready:    make(chan struct{}),
		started:  time.Now(),
		writers:  map[bool]*writer{false: newWriter(false, cfg.Journal), true: newWriter(true, cfg.Journal)},
		changed:  map[string]bool{},
		ports:    map[bool]map[string][]*rules.Port{false: {}, true: {}},
		metrics:  newMetrics(),
	}
	p.health = newHealth(cfg, p.metrics)
	if err := p.slices.AddIndexers(cache.Indexers{byService: func(obj any) ([]string, error) {
		slice := obj.(*discoveryv1.EndpointSlice)
		return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
	}}); err != nil {
		return nil, fmt.Errorf("proxy: preparing informers: %w", err)
	}
	for _, informer := range []cache.SharedIndexInformer{p.services, p.slices} {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    p.touch,
			UpdateFunc: func(old, obj any) { p.touch(old); p.touch(obj) },
			DeleteFunc: p.touch,
		})
		if err != nil {
			return nil, fmt.Errorf("proxy: preparing informers: %w", err)
		}
		p.synced = append(p.synced, registration.HasSyncedChecker())
	}
	registration, err := p.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: p.observe, UpdateFunc: func(_, obj any) { p.observe(obj) }, DeleteFunc: func(obj any) { p.leaves(obj) },
	})
	if err != nil {
		return nil, fmt.Errorf("proxy: preparing informers: %w", err)
	}
	p.synced = append(p.synced, registration.HasSyncedChecker())
	return p, nil
}

// Ready is closed once the rules were written for the first time.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// touch notes that the service of obj, a service or a slice, has changed.
func (p *Proxy) touch(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	var key string
	var triggered time.Time
	switch o := obj.(type) {
	case *corev1.Service:
		key = o.Namespace + "/" + o.Name
		p.metrics.serviceChanges.Inc()
	case *discoveryv1.EndpointSlice:
		key = o.Namespace + "/" + o.Labels[discoveryv1.LabelServiceName]
		p.metrics.endpointChanges.Inc()
		// Those that were there before are no news.
		if at, err := time.Parse(time.RFC3339Nano, o.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil && at.After(p.started) {
			triggered = at
		}
	default:
		return
	}
	p.mu.Lock()
	p.changed[key] = true
	if !triggered.IsZero() {
		p.triggered = append(p.triggered, triggered)
	}
	p.mu.Unlock()
	p.metrics.queued()
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// observe takes note of this node: of its zone, and whether it goes.
func (p *Proxy) observe(obj any) {
	n, ok := obj.(*corev1.Node)
	if !ok || n.Name != p.cfg.NodeName {
		return
	}
	leaving := n.DeletionTimestamp != nil
	for _, t := range n.Spec.Taints {
		leaving = leaving || t.Key == toBeDeleted
	}
	p.health.eligible(!leaving)
	zone := n.Labels[corev1.LabelTopologyZone]
	p.mu.Lock()
	moved := zone != p.zone
	p.zone = zone
	p.mu.Unlock()
	if !moved {
		return
	}
	for _, svc := range p.services.GetStore().List() {
		p.touch(svc)
	}
}

// toBeDeleted taints nodes that the cluster autoscaler is about to remove.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// leaves takes note that this node is gone.
func (p *Proxy) leaves(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if n, ok := obj.(*corev1.Node); ok && n.Name == p.cfg.NodeName {
		p.health.eligible(false)
	}
}

// Run keeps the rules until ctx ends. They stay then: traffic goes on while the
// proxy is away.
func (p *Proxy) Run(ctx context.Context) error {
	if p.cfg.LocalhostNodePorts {
		if err := p.routeLocalnet(); err != nil {
			return fmt.Errorf("proxy: %w", err)
		}
	}
	stop, err := p.health.start()
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	defer stop()
	if !cache.WaitFor(ctx, "", p.synced...) {
		return nil
	}
	retry := time.NewTimer(0)
	defer retry.Stop()
	var again <-chan time.Time
	if p.cfg.SyncPeriod > 0 {
		ticker := time.NewTicker(p.cfg.SyncPeriod)
		defer ticker.Stop()
		again = ticker.C
	}
	first := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.dirty:
		case <-retry.C:
		case <-again:
			for _, w := range p.writers {
				w.forget()
			}
		}
		began := time.Now()
		if err := p.sync(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			p.cfg.Log.Error("writing the rules of services failed, trying again", "err", err)
			p.health.failed()
			retry.Reset(time.Second)
			continue
		}
		p.metrics.synced(began, p.takeTriggered())
		p.health.succeeded()
		if first {
			close(p.ready)
			first = false
		}
		// What comes meanwhile is written together.
		pause := time.NewTimer(p.cfg.MinSyncPeriod)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
	}
}

// sync makes the ports of changed services anew and writes what follows.
func (p *Proxy) sync(ctx context.Context) error {
	p.mu.Lock()
	changed := p.changed
	p.changed = map[string]bool{}
	p.mu.Unlock()
	here := node{p.cfg.NodeName, p.nodeZone()}
	stale := map[bool]*staleFlows{}
	for _, ipv6 := range []bool{false, true} {
		stale[ipv6] = &staleFlows{}
		for key := range changed {
			before := p.ports[ipv6][key]
			after := p.portsOf(key, here, ipv6)
			stale[ipv6].compare(before, after)
			if len(after) == 0 {
				delete(p.ports[ipv6], key)
			} else {
				p.ports[ipv6][key] = after
			}
		}
	}
	p.health.serveServices(p.healthCheckPorts(changed))
	for _, ipv6 := range []bool{false, true} {
		// A family that nobody uses is left alone.
		if ipv6 && len(p.ports[ipv6]) == 0 && !p.writers[ipv6].started && !p.writers[ipv6].again {
			continue
		}
		if err := p.writers[ipv6].write(ctx, rules.Build(p.rulesConfig(ipv6), p.sorted(ipv6))); err != nil {
			p.metrics.failures.WithLabelValues(familyName(ipv6)).Inc()
			p.again(changed)
			return err
		}
		p.metrics.wrote(ipv6, p.writers[ipv6].there)
		if err := stale[ipv6].flush(ipv6); err != nil {
			p.cfg.Log.Warn("old UDP flows could not be ended", "err", err)
		}
	}
	return nil
}

func (p *Proxy) nodeZone() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.zone
}

func (p *Proxy) takeTriggered() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.triggered
	p.triggered = nil
	return out
}

// again has the services looked at in the next sync, too.
func (p *Proxy) again(changed map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range changed {
		p.changed[key] = true
	}
}

func (p *Proxy) portsOf(key string, here node, ipv6 bool) []*rules.Port {
	obj, there, err := p.services.GetIndexer().GetByKey(key)
	if err != nil || !there {
		return nil
	}
	return portsOf(obj.(*corev1.Service), p.slicesOf(key), here, ipv6)
}

func (p *Proxy) slicesOf(key string) []*discoveryv1.EndpointSlice {
	objs, err := p.slices.GetIndexer().ByIndex(byService, key)
	if err != nil {
		return nil
	}
	out := make([]*discoveryv1.EndpointSlice, len(objs))
	for i, obj := range objs {
		out[i] = obj.(*discoveryv1.EndpointSlice)
	}
	return out
}

func (p *Proxy) rulesConfig(ipv6 bool) rules.Config {
	cfg := rules.Config{
		IPv6: ipv6, MasqueradeAll: p.cfg.MasqueradeAll, LocalhostNodePorts: p.cfg.LocalhostNodePorts, MasqueradeBit: p.cfg.MasqueradeBit,
	}
	for _, r := range p.cfg.NodePortRanges {
		if r.Addr().Is6() == ipv6 {
			cfg.NodePortRanges = append(cfg.NodePortRanges, r)
		}
	}
	for _, cidr := range p.cfg.PodCIDRs {
		if cidr.Addr().Is6() == ipv6 {
			cfg.PodCIDRs = append(cfg.PodCIDRs, cidr)
		}
	}
	return cfg
}

// sorted returns all ports in an order that does not change by itself.
func (p *Proxy) sorted(ipv6 bool) []*rules.Port {
	keys := make([]string, 0, len(p.ports[ipv6]))
	for key := range p.ports[ipv6] {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	var all []*rules.Port
	for _, key := range keys {
		all = append(all, p.ports[ipv6][key]...)
	}
	return all
}

// routeLocalnet lets packets to 127.0.0.1 be sent on to pods.
func (p *Proxy) routeLocalnet() error {
	const name = "net/ipv4/conf/all/route_localnet"
	path := "/proc/sys/" + name
	before, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the kernel parameter %s: %w", name, err)
	}
	if len(before) > 0 && before[0] == '1' {
		return nil
	}
	if err := p.cfg.Journal.Record(hostchange.Change{Kind: hostchange.Sysctl, Name: name, Before: string(before[:1])}); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("setting the kernel parameter %s: %w", name, err)
	}
	return nil
}
