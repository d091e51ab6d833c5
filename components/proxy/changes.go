package proxy

import (
	"maps"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// nodeFacts are what of the Node the rules depend on.
type nodeFacts struct {
	zone string
	// addresses and podCIDRs by IPv6: the first of each family.
	addresses map[bool]netip.Addr
	podCIDRs  map[bool]netip.Prefix
}

func factsOf(n *corev1.Node) nodeFacts {
	f := nodeFacts{zone: n.Labels[corev1.LabelTopologyZone], addresses: map[bool]netip.Addr{}, podCIDRs: map[bool]netip.Prefix{}}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range n.Status.Addresses {
			addr, err := netip.ParseAddr(a.Address)
			if _, known := f.addresses[addr.Is6()]; err == nil && a.Type == kind && !known {
				f.addresses[addr.Is6()] = addr
			}
		}
	}
	for _, text := range n.Spec.PodCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if _, known := f.podCIDRs[prefix.Addr().Is6()]; err == nil && !known {
			f.podCIDRs[prefix.Addr().Is6()] = prefix.Masked()
		}
	}
	return f
}

// told takes in a change that the informers tell of: old is nil for what came, and
// obj for what went.
func (p *Proxy) told(old, obj any) {
	if unknown, ok := old.(cache.DeletedFinalStateUnknown); ok {
		old = unknown.Obj
	}
	changes := p.metrics.serviceChanges
	for _, o := range []any{old, obj} {
		if _, ok := o.(*discoveryv1.EndpointSlice); ok {
			changes = p.metrics.endpointChanges
		}
	}
	changes.Inc()
	if slice, ok := obj.(*discoveryv1.EndpointSlice); ok {
		before, _ := old.(*discoveryv1.EndpointSlice)
		p.trigger(before, slice)
	}
	p.touch(old)
	p.touch(obj)
}

// trigger takes note of when that happened to pods which a slice tells of now; old may
// be nil.
func (p *Proxy) trigger(old, slice *discoveryv1.EndpointSlice) {
	text := slice.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if old != nil && old.Annotations[corev1.EndpointsLastChangeTriggerTime] == text {
		return
	}
	// Those that were there before are no news.
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil && at.After(p.started) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.triggered = append(p.triggered, at)
	}
}

// touch notes that the ports of the service of obj, a service or a slice, are to be
// made anew; obj may be nil.
func (p *Proxy) touch(obj any) {
	var key string
	switch o := obj.(type) {
	case *corev1.Service:
		key = o.Namespace + "/" + o.Name
	case *discoveryv1.EndpointSlice:
		key = o.Namespace + "/" + o.Labels[discoveryv1.LabelServiceName]
	default:
		return
	}
	p.mu.Lock()
	p.changed[key] = true
	kind := 0
	if _, ok := obj.(*discoveryv1.EndpointSlice); ok {
		kind = 1
	}
	if p.pending[kind] == nil {
		p.pending[kind] = map[string]bool{}
	}
	p.pending[kind][key] = true
	services, endpoints := len(p.pending[0]), len(p.pending[1])
	p.mu.Unlock()
	p.metrics.queued(services, endpoints)
	p.wake()
}

// wake has the rules looked at.
func (p *Proxy) wake() {
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
	facts := factsOf(n)
	p.mu.Lock()
	before := p.node
	p.node = facts
	p.mu.Unlock()
	moved := !maps.Equal(facts.addresses, before.addresses)
	// The node's addresses are where health check ports are.
	if facts.zone != before.zone || moved && p.cfg.NodePortsOnPrimary {
		for _, svc := range p.services.GetStore().List() {
			p.touch(svc)
		}
	}
	if moved || !maps.Equal(facts.podCIDRs, before.podCIDRs) {
		p.wake()
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
