package proxy

import (
	"maps"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// nodeFacts are the fields of the Node that the rules depend on.
type nodeFacts struct {
	zone string
	// addresses and podCIDRs contain the first of each IP family, keyed by IPv6.
	addresses map[bool]netip.Addr
	podCIDRs  map[bool]netip.Prefix
}

// nodeFactsOf returns the facts of a Node. Internal addresses take precedence over external ones,
// and the first of each kind counts.
func nodeFactsOf(n *corev1.Node) nodeFacts {
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

// handleEvent handles an informer event of a Service or EndpointSlice: it counts the event in the
// metrics, marks the Service as changed and triggers a sync. old is nil for added objects, obj is
// nil for deleted objects.
func (p *Proxy) handleEvent(old, obj any) {
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
		p.recordTrigger(before, slice)
	}
	p.markChanged(old)
	p.markChanged(obj)
}

// recordTrigger records when the pod changed that caused the update of slice from old, which the
// endpoints controller notes in an annotation. The next sync reports the time since then as the
// metric network_programming_duration. old is nil for a new slice.
func (p *Proxy) recordTrigger(old, slice *discoveryv1.EndpointSlice) {
	text := slice.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if old != nil && old.Annotations[corev1.EndpointsLastChangeTriggerTime] == text {
		return
	}
	// Skip changes from before the proxy started.
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil && at.After(p.started) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.triggered = append(p.triggered, at)
	}
}

// markChanged marks the Service to which obj, a Service or EndpointSlice, belongs as changed, and
// triggers a sync. It ignores nil.
func (p *Proxy) markChanged(obj any) {
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
	p.triggerSync()
}

// triggerSync makes Run call sync soon. It does not block.
func (p *Proxy) triggerSync() {
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// handleNode handles an informer event of a Node. If it is this node, it stores the node's zone and
// addresses, triggers a sync if these affect the rules, and lets /healthz report whether the node
// is being removed.
func (p *Proxy) handleNode(obj any) {
	n, ok := obj.(*corev1.Node)
	if !ok || n.Name != p.cfg.NodeName {
		return
	}
	leaving := n.DeletionTimestamp != nil
	for _, t := range n.Spec.Taints {
		leaving = leaving || t.Key == autoscalerTaint
	}
	p.health.setEligible(!leaving)
	facts := nodeFactsOf(n)
	p.mu.Lock()
	before := p.node
	p.node = facts
	p.mu.Unlock()
	moved := !maps.Equal(facts.addresses, before.addresses)
	// Health check ports listen on the node's addresses.
	if facts.zone != before.zone || moved && p.cfg.NodePortsOnPrimary {
		for _, svc := range p.services.GetStore().List() {
			p.markChanged(svc)
		}
	}
	if moved || !maps.Equal(facts.podCIDRs, before.podCIDRs) {
		p.triggerSync()
	}
}

// autoscalerTaint is the taint that the cluster autoscaler adds to a node before removing it.
const autoscalerTaint = "ToBeDeletedByClusterAutoscaler"

// handleNodeDeleted lets /healthz fail when the Node of this machine was deleted, so that load
// balancers stop sending traffic to it.
func (p *Proxy) handleNodeDeleted(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if n, ok := obj.(*corev1.Node); ok && n.Name == p.cfg.NodeName {
		p.health.setEligible(false)
	}
}

// drainTriggered returns and clears the times that recordTrigger has recorded.
func (p *Proxy) drainTriggered() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.triggered
	p.triggered = nil
	return out
}

// requeue marks Services as changed again after a sync failed, so that the next sync computes their
// ports.
func (p *Proxy) requeue(changed map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range changed {
		p.changed[key] = true
	}
}
