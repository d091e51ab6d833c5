package loadbalancer

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/loadbalancer/addresspool"
	"hyperkube/internal/pod/netannotation"
)

// conditionAddressError is the type of the condition of a Service that gets no addresses of the pool.
const conditionAddressError = "network.hyperkube.io/LoadBalancerAddressError"

// Reasons of the condition conditionAddressError.
const (
	// reasonExhausted: all addresses of the pool are used.
	reasonExhausted = "PoolExhausted"
	// reasonNotInPool: the pool does not contain the requested address, or no address of an IP family.
	reasonNotInPool = "AddressNotInPool"
	// reasonInUse: another Service or a node has the requested address.
	reasonInUse = "AddressInUse"
	// reasonInvalidAddress: the Service requests what is not an address of its IP families.
	reasonInvalidAddress = "InvalidAddress"
	// reasonAssigned: the Service has addresses.
	reasonAssigned = "AddressesAssigned"
)

// leasePrefix is the prefix of the keys of Leases in the queue, followed by the name of the node. Keys of Services
// begin with a namespace.
const leasePrefix = "/lease/"

// poolState is what the controller stores if it assigns addresses of a pool.
type poolState struct {
	pool   addresspool.Pool
	leases *leases
	// changes is the number of changes of Nodes and Leases that affect the states of nodes.
	changes atomic.Int64

	// Used only during a sync, and one sync runs at a time.
	claims *claims
	// states caches the states of all nodes as they were after statesAt changes.
	states   map[string]nodeState
	statesAt int64
	// waiting are the Services that lack an address, and are synced again when one is released.
	waiting map[string]bool
}

func newPoolState(env control.Env, pool addresspool.Pool) *poolState {
	return &poolState{pool: pool, leases: newLeases(env.Clock), claims: newClaims(), waiting: map[string]bool{}}
}

// watchLeases makes the controller sync all Services when the Lease of a node expires, or a node without a valid Lease
// renews it.
func (c *Controller) watchLeases() error {
	observe := func(l *coordv1.Lease) {
		if c.pool.leases.observe(l) {
			c.pool.changes.Add(1)
			c.Add(leasePrefix + l.Name)
			c.enqueueAll()
		}
	}
	return c.Watch(c.env.Informers.Coordination().V1().Leases().Informer(), control.Handlers(observe, func(_, l *coordv1.Lease) { observe(l) },
		func(l *coordv1.Lease) {
			if l.Namespace == corev1.NamespaceNodeLease {
				c.pool.leases.forget(l.Name)
			}
		}))
}

// syncLease enqueues all Services if the Lease of a node has expired. Otherwise it checks again when it would expire.
func (c *Controller) syncLease(ctx context.Context, node string) {
	left, exists := c.pool.leases.left(node)
	switch {
	case !exists:
	case left > 0:
		c.AddAfter(leasePrefix+node, left)
	default:
		c.env.Log.WarnContext(ctx, "kubelet of node has not renewed its Lease; load balancer addresses that the node announces move to other nodes, until the kubelet renews the Lease the node gets no addresses", "node", node)
		c.pool.changes.Add(1)
		c.enqueueAll()
	}
}

// claimAssigned claims the addresses that Services have, so that none is assigned to another Service. Of two Services
// with the same address, the older one keeps it.
func (c *Controller) claimAssigned(context.Context) error {
	all, err := c.services.List(labels.Everything())
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b *corev1.Service) int {
		if precedes(a, b) {
			return -1
		}
		return 1
	})
	for _, svc := range all {
		if handles(svc) || slices.Contains(svc.Finalizers, finalizer) {
			c.pool.claims.set(keyOf(svc), c.pool.assignedTo(svc)...)
		}
	}
	return nil
}

// keyOf returns the key of a Service in the queue.
func keyOf(svc *corev1.Service) string { return svc.Namespace + "/" + svc.Name }

// assignedTo returns the addresses of the pool that svc has.
func (p *poolState) assignedTo(svc *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, i := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil && p.pool.Contains(a) {
			out = append(out, a)
		}
	}
	return out
}

// nodeStates returns the states of all Nodes by their names. The caller must not modify the result.
func (c *Controller) nodeStates() (map[string]nodeState, error) {
	at := c.pool.changes.Load() // before reading the Nodes, so that a change in the meantime is not missed
	if c.pool.states != nil && c.pool.statesAt == at {
		return c.pool.states, nil
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	states := make(map[string]nodeState, len(nodes))
	for _, n := range nodes {
		s := stateOf(n)
		left, exists := c.pool.leases.left(n.Name)
		s.expired = exists && left <= 0
		states[n.Name] = s
	}
	c.pool.states, c.pool.statesAt = states, at
	return states, nil
}

// assignFromPool writes the addresses of svc and the node that announces them to the API server, and emits an event if
// they changed. If svc cannot have addresses, it gets a condition and an event instead.
func (c *Controller) assignFromPool(ctx context.Context, svc *corev1.Service) error {
	states, err := c.nodeStates()
	if err != nil {
		return err
	}
	p, key := c.pool, keyOf(svc)
	want, complete, problem := p.addressesFor(svc, states)
	if complete {
		delete(p.waiting, key)
	} else {
		p.waiting[key] = true
	}
	// If the write fails, the Service may have the former addresses or the new ones.
	p.claims.set(key, append(slices.Clone(want), p.claims.of(key)...)...)
	if problem != nil {
		err = c.refuseAddresses(ctx, svc, problem)
	} else {
		err = c.writeAddresses(ctx, svc, want, states)
	}
	if err != nil {
		return err
	}
	if p.claims.set(key, want...) {
		c.enqueueWaiting()
	}
	return nil
}

// addressesFor returns the addresses that svc gets, as the function choose does.
func (p *poolState) addressesFor(svc *corev1.Service, states map[string]nodeState) ([]netip.Addr, bool, *problem) {
	d, invalid := demandOf(svc)
	if invalid != nil {
		return nil, false, invalid
	}
	key := keyOf(svc)
	return choose(p.pool, d, p.claims.of(key), func(a netip.Addr) string {
		if by := p.claims.owner(a); by != "" && by != key {
			return "Service " + by
		}
		for name, s := range states {
			if slices.Contains(s.ips, a) {
				return "node " + name
			}
		}
		return ""
	})
}

// enqueueWaiting enqueues the Services that lack an address.
func (c *Controller) enqueueWaiting() {
	for key := range c.pool.waiting {
		c.Add(key)
	}
}

// forgetClaims releases the addresses that a Service had, because it does not exist any more or needs none.
func (c *Controller) forgetClaims(key string) {
	if c.pool == nil {
		return
	}
	delete(c.pool.waiting, key)
	if c.pool.claims.set(key) {
		c.enqueueWaiting()
	}
}

// writeAddresses writes the addresses of svc and the node that announces them, and emits events about changes.
func (c *Controller) writeAddresses(ctx context.Context, svc *corev1.Service, addresses []netip.Addr, states map[string]nodeState) error {
	endpoints, err := c.endpointsOf(svc)
	if err != nil {
		return err
	}
	var local map[string]bool
	if isLocal(svc) {
		local = nodesOf(endpoints)
	}
	before := svc.Annotations[netannotation.LoadBalancerNode]
	node := elect(string(svc.UID), before, addresses, states, local)
	next := svc.DeepCopy()
	if node == "" {
		c.env.Events.Event(svc, corev1.EventTypeWarning, "UnAvailableLoadBalancer", "There are no available nodes for LoadBalancer")
		delete(next.Annotations, netannotation.LoadBalancerNode)
	} else {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, netannotation.LoadBalancerNode, node)
	}
	if !slices.Contains(next.Finalizers, finalizer) {
		next.Finalizers = append(next.Finalizers, finalizer)
	}
	next.Status.LoadBalancer.Ingress = nil
	texts := make([]string, 0, len(addresses))
	for _, a := range addresses {
		texts = append(texts, a.String())
		next.Status.LoadBalancer.Ingress = append(next.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)})
	}
	meta.RemoveStatusCondition(&next.Status.Conditions, corev1.LoadBalancerPortsError)
	if meta.FindStatusCondition(next.Status.Conditions, conditionAddressError) != nil {
		c.setCondition(next, conditionAddressError, metav1.ConditionFalse, reasonAssigned, "The Service has addresses of the pool")
	}
	changed, err := c.write(ctx, svc, next)
	if err != nil || !changed {
		return err
	}
	if was := c.pool.assignedTo(svc); !slices.Equal(was, addresses) {
		c.env.Events.Eventf(svc, corev1.EventTypeNormal, "IPAllocated", "Assigned IP %s", strings.Join(texts, ", "))
	}
	if node != "" && node != before {
		c.env.Events.Eventf(svc, corev1.EventTypeNormal, "NodeAssigned", "Node %s announces the addresses", node)
	}
	return nil
}

// refuseAddresses removes the addresses of svc, and sets a condition and emits an event with the problem.
func (c *Controller) refuseAddresses(ctx context.Context, svc *corev1.Service, p *problem) error {
	next := svc.DeepCopy()
	next.Status.LoadBalancer.Ingress = nil
	delete(next.Annotations, netannotation.LoadBalancerNode)
	meta.RemoveStatusCondition(&next.Status.Conditions, corev1.LoadBalancerPortsError)
	c.setCondition(next, conditionAddressError, metav1.ConditionTrue, p.reason, p.message)
	changed, err := c.write(ctx, svc, next)
	if err != nil || !changed {
		return err
	}
	c.env.Events.Eventf(svc, corev1.EventTypeWarning, "AllocationFailed", "Failed to allocate IP: %s", p.message)
	return nil
}
