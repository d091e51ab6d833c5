// Package proxy implements the service proxy. It forwards traffic for services to their endpoints
// with packet filter rules, like kube-proxy in its modes iptables and nftables.
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
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/client"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/serving/zpages"
)

// Config configures a Proxy.
//
// Size: the fields are those of KubeProxyConfiguration.
type Config struct {
	// Clients authenticate as system:kube-proxy. The caller starts their informers.
	Clients *client.Clients
	// NodeName is the name of this node, which determines local endpoints.
	NodeName string
	// DetectLocalMode selects how traffic of this node's pods is detected.
	DetectLocalMode DetectLocalMode
	// PodCIDRs of the whole cluster, for LocalByClusterCIDR. The first of each IP family is used.
	PodCIDRs []netip.Prefix
	// PodLink is the bridge for LocalByBridge, or the link name prefix for LocalByLinkPrefix.
	PodLink string
	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool
	// LocalhostNodePorts makes node ports reachable on 127.0.0.1.
	LocalhostNodePorts bool
	// MinSyncPeriod is the minimum time between two writes of rules. Zero means 50 ms with iptables, and 5 ms with nftables,
	// where a write costs less than a millisecond.
	MinSyncPeriod time.Duration
	// SyncPeriod is the interval of checks for removed rules if the kernel does not send
	// notifications. Zero means 30 seconds.
	SyncPeriod time.Duration
	// PacketFilter is how rules are written. Empty means packetfilter.IPTables.
	PacketFilter packetfilter.Mode
	// MasqueradeMark is the packet mark bit that requests masquerading. Zero means 0x4000, as
	// upstream.
	MasqueradeMark uint32
	// NodePortRanges contain the node addresses on which node ports answer. An IP family without
	// ranges uses all addresses. NodePortsOnPrimary adds the first address of each family in the
	// Node status.
	NodePortRanges     []netip.Prefix
	NodePortsOnPrimary bool
	// Conntrack are the conntrack settings. Unset fields have upstream's defaults.
	Conntrack kubeproxyv1alpha1.KubeProxyConntrackConfiguration
	// Profiling serves /debug/pprof on the metrics address.
	Profiling bool
	// Flags are the command line flags for /flagz. It may be nil.
	Flags zpages.Flags
	// Configuration returns the content of /configz. Nil means a configuration derived from the
	// other fields.
	Configuration func() any
	// Level can be changed through /debug/flags/v, if Profiling is set. Nil disables that.
	Level *slog.LevelVar
	// HealthzAddress and MetricsAddress are listen addresses. If empty, they are not served.
	HealthzAddress, MetricsAddress string
	// Journal records the changes to the host, so that a reset undoes them. Nil records none.
	Journal *hostjournal.Journal
	Log     *slog.Logger
}

// DetectLocalMode selects how the rules recognize traffic of this node's pods. All other traffic to
// cluster IPs is masqueraded.
type DetectLocalMode int

// LocalByClusterCIDR and the other modes recognize traffic of this node's pods by the source address or by the
// network interface. They are the values of upstream's detectLocalMode.
const (
	LocalByClusterCIDR DetectLocalMode = iota // source address in the cluster's pod CIDR
	LocalByNodeCIDR                           // source address in the node's pod CIDR
	LocalByBridge                             // incoming link is a bridge
	LocalByLinkPrefix                         // incoming link has a name prefix
)

// Proxy keeps the packet filter rules of this node in sync with the Services and EndpointSlices of the
// cluster. Informers mark Services as changed; Run writes the rules.
//
// Size: the informers, what they have changed, and what Run has written; each is one part of the same loop.
type Proxy struct {
	cfg      Config
	services cache.SharedIndexInformer
	slices   cache.SharedIndexInformer
	nodes    cache.SharedIndexInformer
	synced   []cache.DoneChecker
	dirty    chan struct{} // buffered: holds one element if a sync is required
	ready    chan struct{} // closed after the first sync
	started  time.Time     // changes before are not counted by the latency metric
	writer   *packetfilter.Writer
	health   *health
	metrics  *metrics

	mu sync.Mutex // guards the fields below
	// changed are the services ("namespace/name") whose ports must be computed again.
	changed map[string]bool
	// pending are, for metrics, the changed Services that changed themselves, and those whose endpoints changed.
	pending [2]map[string]bool
	// triggered are the times of the pod changes that caused endpoint changes.
	triggered []time.Time
	node      nodeFacts

	// Used only by the goroutine of Run.
	ports       map[bool]map[string][]*rules.Port // keyed by IPv6, then by service
	translators map[bool]rules.Translator         // keyed by IPv6; they contain ports
	// removed are the ports of deleted services, keyed by IPv6. Their UDP flows are deleted after
	// the rules are written.
	removed map[bool][]*rules.Port
	// refused are the load balancer addresses of this node that are not served because other programs listen there,
	// with the service that has the address.
	refused map[hostListener]string
	liberal bool // rules.Config.Liberal
}

// minSyncIPTables and minSyncNFTables are the defaults of MinSyncPeriod.
const (
	minSyncIPTables = 50 * time.Millisecond
	minSyncNFTables = 5 * time.Millisecond
)

// byService is the name of the index of EndpointSlices by "namespace/name" of the Service.
const byService = "proxy-service"

// New returns a Proxy and adds its event handlers to the informers of cfg.Clients, which the caller
// must start. cfg.Clients and cfg.NodeName are required.
func New(cfg Config) (*Proxy, error) {
	if cfg.Clients == nil || cfg.NodeName == "" {
		return nil, errors.New("proxy: clients and node name are required")
	}
	if cfg.MinSyncPeriod == 0 {
		cfg.MinSyncPeriod = minSyncIPTables
		if cfg.PacketFilter == packetfilter.NFTables {
			cfg.MinSyncPeriod = minSyncNFTables
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	p := &Proxy{
		cfg:         cfg,
		services:    cfg.Clients.Informers.Core().V1().Services().Informer(),
		slices:      cfg.Clients.Informers.Discovery().V1().EndpointSlices().Informer(),
		nodes:       cfg.Clients.Informers.Core().V1().Nodes().Informer(),
		dirty:       make(chan struct{}, 1),
		ready:       make(chan struct{}),
		started:     time.Now(),
		writer:      newWriter(cfg),
		changed:     map[string]bool{},
		ports:       map[bool]map[string][]*rules.Port{false: {}, true: {}},
		translators: newTranslators(cfg.PacketFilter),
		removed:     map[bool][]*rules.Port{},
		refused:     map[hostListener]string{},
		metrics:     newMetrics(),
	}
	if r := cfg.Clients.Requests; r != nil {
		p.metrics.registry.MustRegister(r)
	}
	p.health = newHealth(cfg, p.metrics)
	if err := p.slices.AddIndexers(cache.Indexers{byService: func(obj any) ([]string, error) {
		slice := obj.(*discoveryv1.EndpointSlice)
		return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
	}}); err != nil {
		return nil, fmt.Errorf("proxy: adding indexer: %w", err)
	}
	for _, informer := range []cache.SharedIndexInformer{p.services, p.slices} {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { p.handleEvent(nil, obj) },
			UpdateFunc: p.handleEvent,
			DeleteFunc: func(obj any) { p.handleEvent(obj, nil) },
		})
		if err != nil {
			return nil, fmt.Errorf("proxy: adding event handler: %w", err)
		}
		p.synced = append(p.synced, registration.HasSyncedChecker())
	}
	registration, err := p.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: p.handleNode, UpdateFunc: func(_, obj any) { p.handleNode(obj) }, DeleteFunc: func(obj any) { p.handleNodeDeleted(obj) },
	})
	if err != nil {
		return nil, fmt.Errorf("proxy: adding event handler: %w", err)
	}
	p.synced = append(p.synced, registration.HasSyncedChecker())
	return p, nil
}

// newTranslators returns the translators of both IP families, keyed by IPv6.
func newTranslators(mode packetfilter.Mode) map[bool]rules.Translator {
	return map[bool]rules.Translator{false: rules.NewTranslator(mode), true: rules.NewTranslator(mode)}
}

// newWriter returns the writer of the proxy's rules. It also watches the chains named KUBE-*, to
// detect that another program removed them.
func newWriter(cfg Config) *packetfilter.Writer {
	objects, otherMode := rules.Objects(cfg.PacketFilter)
	return packetfilter.NewWriter(packetfilter.Config{
		Owner: "services", Objects: objects, OtherMode: otherMode, Guarded: []string{"KUBE-*"}, Period: cfg.SyncPeriod, Mode: cfg.PacketFilter, Journal: cfg.Journal, Log: cfg.Log,
	})
}

// Ready returns a channel that is closed after the first write of the rules, when this node
// forwards the traffic of all services.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// Run sets kernel parameters, serves health and metrics, and maintains the rules until ctx is
// canceled; then it returns nil. It writes them again after a change, after a failure, and when
// another program removed them. The rules stay in place, so traffic continues while the proxy is
// stopped. It returns an error if a kernel parameter that was explicitly set cannot be set, or an
// address cannot be listened on.
func (p *Proxy) Run(ctx context.Context) error {
	if p.localhostNodePorts() {
		if err := p.routeLocalnet(); err != nil {
			return fmt.Errorf("proxy: %w", err)
		}
	}
	bounded := conntrackLoaded()
	if bounded {
		if err := p.applyConntrackSettings(); err != nil {
			return fmt.Errorf("proxy: %w", err)
		}
	}
	var eventWrites sync.WaitGroup
	defer eventWrites.Wait()
	p.health.onUnserved = func(service string, port uint16, err error) {
		eventWrites.Go(func() { p.createUnservedEvent(ctx, nameOf(service), port, err) })
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
	watching.Go(func() { p.writer.Run(ctx, suspect) })
	retry := time.NewTimer(0)
	defer retry.Stop()
	ports, due := time.NewTimer(portRetryInterval), true
	defer ports.Stop()
	first := true
	for {
		if !due && p.health.hasWaiting() {
			ports.Reset(portRetryInterval)
			due = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ports.C:
			due = false
			p.health.retryWaiting()
			continue
		case <-p.dirty:
		case <-retry.C:
		case <-suspect:
			if !p.writer.Lost(ctx) {
				continue
			}
			p.cfg.Log.Info("rules of Services are missing, changed or unreadable, probably because of another program; connections to Services may have failed, writing the rules again now")
		}
		if err := p.sync(ctx, &eventWrites); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			p.cfg.Log.Error("writing rules of Services failed; recent changes of Services and endpoints have no effect on this node until a retry succeeds, retrying", "retryAfter", time.Second, "err", err)
			p.health.recordFailure()
			retry.Reset(time.Second)
			continue
		}
		p.health.recordSuccess(p.families()...)
		if !bounded {
			if err := p.applyConntrackSettings(); err != nil {
				return fmt.Errorf("proxy: %w", err)
			}
			p.liberal, bounded = readLiberal(), true
		}
		if first {
			close(p.ready)
			first = false
		}
		// Changes in this time are written together.
		if !lifecycle.Pause(ctx, p.cfg.MinSyncPeriod) {
			return nil
		}
	}
}

// sync computes the ports of changed Services, updates their health check ports and writes the
// rules of both IP families. Then it deletes the UDP flows to endpoints that were removed. It
// creates events in goroutines of events. If writing fails, it marks the Services as changed again
// and returns the error. It may only be called by the goroutine of Run.
func (p *Proxy) sync(ctx context.Context, events *sync.WaitGroup) error {
	p.mu.Lock()
	changed := p.changed
	p.changed, p.pending = map[string]bool{}, [2]map[string]bool{}
	p.mu.Unlock()
	p.metrics.syncStarted()
	began := time.Now()
	facts := p.facts()
	here := node{p.cfg.NodeName, facts.zone}
	datagrams := map[bool]bool{} // keyed by IPv6: UDP ports changed
	for _, ipv6 := range []bool{false, true} {
		for key := range changed {
			before := p.ports[ipv6][key]
			after := p.portsOf(key, here, ipv6)
			for _, l := range p.usedAddresses(key, ipv6, before, after) {
				events.Go(func() { p.createPortInUseEvent(ctx, nameOf(key), l) })
			}
			p.translators[ipv6].Replace(before, after)
			p.metrics.portsReplaced(ipv6, before, after)
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
	written := map[bool]bool{} // keyed by IPv6: whether all rules were written
	for _, ipv6 := range []bool{false, true} {
		family := packetfilter.FamilyOf(ipv6)
		// Do not touch an IP family without services.
		if ipv6 && len(p.ports[ipv6]) == 0 && !p.writer.Used(family) {
			continue
		}
		whole := !p.writer.Current(family)
		if err := p.writer.Sync(ctx, family, p.translators[ipv6].Build(p.rulesConfig(ipv6, facts))); err != nil {
			p.metrics.failed(ipv6, whole)
			p.requeue(changed)
			return err
		}
		written[ipv6] = whole
		p.metrics.rulesWritten(ipv6, p.writer)
		removed := p.removed[ipv6]
		p.removed[ipv6] = nil
		if !datagrams[ipv6] && !slices.ContainsFunc(removed, isUDP) {
			continue
		}
		// Existing ports override removed ones with the same address.
		began := time.Now()
		n, err := udpFrontendsOf(append(removed, p.allPorts(ipv6)...)).flush(ipv6)
		p.metrics.flowsDeleted(ipv6, n, began)
		if err != nil {
			p.cfg.Log.Warn("deleting conntrack entries of UDP flows to removed endpoints of Services failed; packets of these flows still go to the removed endpoints until the entries expire, no retry", "family", family, "err", err)
		}
	}
	triggered := p.drainTriggered()
	for ipv6, whole := range written {
		p.metrics.synced(ipv6, whole, began, triggered)
	}
	return nil
}

// families returns the IP families whose current rules are written: true for IPv6.
func (p *Proxy) families() []bool {
	var out []bool
	for _, ipv6 := range []bool{false, true} {
		if p.writer.Current(packetfilter.FamilyOf(ipv6)) {
			out = append(out, ipv6)
		}
	}
	return out
}

func isUDP(p *rules.Port) bool { return p.Protocol == "udp" }

// facts returns the last known facts of this node. They are empty until the Node was received.
func (p *Proxy) facts() nodeFacts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.node
}

// portsOf returns the ports of the Service key, "namespace/name", as the function portsOf does. It
// returns nil if the Service does not exist.
func (p *Proxy) portsOf(key string, here node, ipv6 bool) []*rules.Port {
	obj, exists, err := p.services.GetIndexer().GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	return portsOf(obj.(*corev1.Service), p.slicesOf(key), here, ipv6)
}

// slicesOf returns the EndpointSlices of the Service key, "namespace/name".
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

// allPorts returns the ports of all Services in one IP family, in any order.
func (p *Proxy) allPorts(ipv6 bool) []*rules.Port {
	var all []*rules.Port
	for _, ports := range p.ports[ipv6] {
		all = append(all, ports...)
	}
	return all
}
