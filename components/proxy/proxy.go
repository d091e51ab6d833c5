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
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/client"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/iptables"
	"hyperkube/internal/lifecycle"
	"hyperkube/internal/zpages"
)

// Config of a Proxy.
type Config struct {
	// Clients of system:kube-proxy; their informers are started by who
	// composes the process.
	Clients *client.Clients
	// NodeName tells which endpoints are near.
	NodeName string
	// Local says how traffic of this node's pods is told from other traffic.
	Local Local
	// PodCIDRs of the whole cluster, for LocalByClusterCIDR; the first of each
	// family counts.
	PodCIDRs []netip.Prefix
	// PodLink is the bridge of LocalByBridge, or how the names of links begin
	// of LocalByLinkPrefix.
	PodLink string
	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool
	// LocalhostNodePorts makes node ports answer on 127.0.0.1.
	LocalhostNodePorts bool
	// MinSyncPeriod is the least time between two writes; zero is a default.
	MinSyncPeriod time.Duration
	// SyncPeriod is how often it is looked whether the rules are still there,
	// where the kernel does not tell of their removal; zero: half a minute.
	SyncPeriod time.Duration
	// MasqueradeMark is the bit of packets' marks that asks for masquerading;
	// zero is 0x4000, as upstream.
	MasqueradeMark uint32
	// NodePortRanges are those of the node's addresses on which node ports
	// answer; of a family without any: all. NodePortsOnPrimary adds the node's
	// own address of each family as its Node says.
	NodePortRanges     []netip.Prefix
	NodePortsOnPrimary bool
	// Conntrack is what the kernel is told of connections, on a node or in a
	// container; what it leaves open is as of upstream's.
	Conntrack kubeproxyv1alpha1.KubeProxyConntrackConfiguration
	// Profiling serves /debug/pprof beside the metrics.
	Profiling bool
	// Flags are those with which the proxy was started; it may be nil.
	Flags zpages.Flags
	// Configuration is what /configz tells; nil: what follows from the rest.
	Configuration func() any
	// Level is changed by /debug/flags/v, with Profiling; nil: it is as it is.
	Level *slog.LevelVar
	// HealthzAddress and MetricsAddress to serve on; empty serves none.
	HealthzAddress, MetricsAddress string
	// Journal records the changes to the host; nil records none.
	Journal *hostchange.Journal
	Log     *slog.Logger
}

// Local is a way to tell traffic of this node's pods.
type Local int

// The ways there are: upstream's detectLocalMode.
const (
	LocalByClusterCIDR Local = iota // its addresses are of all pods' range
	LocalByNodeCIDR                 // its addresses are of the node's range
	LocalByBridge                   // it comes in by a bridge
	LocalByLinkPrefix               // it comes in by a link whose name begins so
)

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
	guard    *iptables.Guard

	mu sync.Mutex // guards what follows
	// changed are the services ("namespace/name") whose ports are to be
	// made anew.
	changed map[string]bool
	// pending are those of them that have changed themselves, and those whose
	// endpoints have.
	pending [2]map[string]bool
	// triggered is when something happened to pods that endpoints now tell of.
	triggered []time.Time
	node      nodeFacts

	// Owned by the goroutine of Run.
	ports map[bool]map[string][]*rules.Port // by IPv6, then by service
	// removed are the ports, by IPv6, of services that are gone, whose UDP flows
	// are to be ended once the rules are written.
	removed map[bool][]*rules.Port
	liberal bool // rules.Config's
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
		guard:    iptables.NewGuard(cfg.SyncPeriod, cfg.Log, "KUBE-*"),
		changed:  map[string]bool{},
		ports:    map[bool]map[string][]*rules.Port{false: {}, true: {}},
		removed:  map[bool][]*rules.Port{},
		metrics:  newMetrics(),
	}
	if r := cfg.Clients.Requests; r != nil {
		p.metrics.registry.MustRegister(r)
	}
	p.writers = map[bool]*writer{false: newWriter(false, cfg.Journal, p.guard), true: newWriter(true, cfg.Journal, p.guard)}
	p.health = newHealth(cfg, p.metrics)
	if err := p.slices.AddIndexers(cache.Indexers{byService: func(obj any) ([]string, error) {
		slice := obj.(*discoveryv1.EndpointSlice)
		return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
	}}); err != nil {
		return nil, fmt.Errorf("proxy: preparing informers: %w", err)
	}
	for _, informer := range []cache.SharedIndexInformer{p.services, p.slices} {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { p.told(nil, obj) },
			UpdateFunc: p.told,
			DeleteFunc: func(obj any) { p.told(obj, nil) },
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

// Run keeps the rules until ctx ends. They stay then: traffic goes on while the
// proxy is away.
func (p *Proxy) Run(ctx context.Context) error {
	if p.localhostNodePorts() {
		if err := p.routeLocalnet(); err != nil {
			return fmt.Errorf("proxy: %w", err)
		}
	}
	bounded := following()
	if bounded {
		if err := p.boundConnections(); err != nil {
			return fmt.Errorf("proxy: %w", err)
		}
	}
	var telling sync.WaitGroup
	defer telling.Wait()
	p.health.unserved = func(service string, port uint16, err error) {
		telling.Go(func() { p.tellUnserved(ctx, nameOf(service), port, err) })
	}
	stop, err := p.health.start()
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	defer stop()
	if !cache.WaitFor(ctx, "", p.synced...) {
		return nil
	}
	p.liberal = readLiberal()
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	suspect := make(chan struct{}, 1)
	watching.Go(func() { p.guard.Run(ctx, suspect) })
	retry := time.NewTimer(0)
	defer retry.Stop()
	ports, due := time.NewTimer(portsAgain), true
	defer ports.Stop()
	first := true
	for {
		if !due && p.health.waits() {
			ports.Reset(portsAgain)
			due = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ports.C:
			due = false
			p.health.serveWaiting()
			continue
		case <-p.dirty:
		case <-retry.C:
		case <-suspect:
			gone := false
			for _, w := range p.writers {
				gone = w.check(ctx) || gone
			}
			if !gone {
				continue
			}
			p.cfg.Log.Info("somebody removed rules of services: all are written again")
		}
		if err := p.sync(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			p.cfg.Log.Error("writing the rules of services failed, trying again", "err", err)
			p.health.failed()
			retry.Reset(time.Second)
			continue
		}
		p.health.succeeded(p.families()...)
		if !bounded {
			if err := p.boundConnections(); err != nil {
				return fmt.Errorf("proxy: %w", err)
			}
			p.liberal, bounded = readLiberal(), true
		}
		if first {
			close(p.ready)
			first = false
		}
		// What comes meanwhile is written together.
		if !lifecycle.Pause(ctx, p.cfg.MinSyncPeriod) {
			return nil
		}
	}
}

// sync makes the ports of changed services anew and writes what follows.
func (p *Proxy) sync(ctx context.Context) error {
	p.mu.Lock()
	changed := p.changed
	p.changed, p.pending = map[string]bool{}, [2]map[string]bool{}
	p.mu.Unlock()
	p.metrics.begun()
	began := time.Now()
	facts := p.facts()
	here := node{p.cfg.NodeName, facts.zone}
	datagrams := map[bool]bool{} // by IPv6: UDP ports changed
	for _, ipv6 := range []bool{false, true} {
		for key := range changed {
			before := p.ports[ipv6][key]
			after := p.portsOf(key, here, ipv6)
			datagrams[ipv6] = datagrams[ipv6] || slices.ContainsFunc(before, isUDP) || slices.ContainsFunc(after, isUDP)
			if len(after) == 0 {
				delete(p.ports[ipv6], key)
				for _, port := range before {
					port.Serving = nil
				}
				p.removed[ipv6] = append(p.removed[ipv6], before...)
			} else {
				p.ports[ipv6][key] = after
			}
		}
	}
	p.health.serveServices(p.healthCheckPorts(changed))
	written := map[bool]bool{} // families, by IPv6, and whether all was written
	for _, ipv6 := range []bool{false, true} {
		// A family that nobody uses is left alone.
		if ipv6 && len(p.ports[ipv6]) == 0 && !p.writers[ipv6].started && !p.writers[ipv6].again {
			continue
		}
		all := p.sorted(ipv6)
		w := p.writers[ipv6]
		whole := !w.started
		if err := w.write(ctx, rules.Build(p.rulesConfig(ipv6, facts), all)); err != nil {
			p.metrics.failed(ipv6, whole)
			p.again(changed)
			return err
		}
		written[ipv6] = whole
		p.metrics.served(ipv6, all)
		p.metrics.wrote(ipv6, w.there, w.last)
		removed := p.removed[ipv6]
		p.removed[ipv6] = nil
		if !datagrams[ipv6] && !slices.ContainsFunc(removed, isUDP) {
			continue
		}
		// Those that are there win over those that were.
		began := time.Now()
		n, err := frontendsOf(append(removed, all...)).flush(ipv6)
		p.metrics.ended(ipv6, n, began)
		if err != nil {
			p.cfg.Log.Warn("old UDP flows could not be ended", "err", err)
		}
	}
	triggered := p.takeTriggered()
	for ipv6, whole := range written {
		p.metrics.synced(ipv6, whole, began, triggered)
	}
	return nil
}

// families, by IPv6, are those whose rules are written.
func (p *Proxy) families() []bool {
	var out []bool
	for ipv6, w := range p.writers {
		if w.started {
			out = append(out, ipv6)
		}
	}
	return out
}

func isUDP(p *rules.Port) bool { return p.Protocol == "udp" }

func (p *Proxy) facts() nodeFacts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.node
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

// sorted returns all ports in an order that does not change by itself.
func (p *Proxy) sorted(ipv6 bool) []*rules.Port {
	keys := make([]string, 0, len(p.ports[ipv6]))
	for key := range p.ports[ipv6] {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	var all []*rules.Port
	for _, key := range keys {
		all = append(all, p.ports[ipv6][key]...)
	}
	return all
}
