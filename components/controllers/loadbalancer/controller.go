// Package loadbalancer assigns addresses to Services of type LoadBalancer in clusters without a cloud
// provider. Service proxies accept connections to the ports of the Service at these addresses, and forward them like
// connections to node ports.
//
// Without a pool, the addresses are those of the nodes. Two Services cannot have the same port, because all of them
// have the same addresses. The older Service keeps the port. The other one stays pending, with the condition
// LoadBalancerPortsError and an event, until the port is free.
//
// With a pool, each Service has its own addresses, one for each IP family. The controller selects a node that answers
// ARP requests and neighbor solicitations for them, and writes its name to an annotation of the Service. The status
// of the Services records which addresses are assigned.
//
// https://kubernetes.io/docs/concepts/services-networking/service/#loadbalancer
package loadbalancer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/loadbalancer/addresspool"
	"hyperkube/internal/pod/netannotation"
)

const (
	// finalizer marks the Services that this controller has assigned addresses to. Upstream's service controller uses
	// the same finalizer.
	finalizer = "service.kubernetes.io/load-balancer-cleanup"
	// fieldManager is the field manager of this controller's writes.
	fieldManager = "load-balancer-controller"
)

// Reasons of the condition LoadBalancerPortsError of a Service.
const (
	// reasonPortConflict: an older Service, or a component of the cluster, has the port.
	reasonPortConflict = "PortConflict"
	// reasonPortsAvailable: the addresses serve all ports.
	reasonPortsAvailable = "PortsAvailable"
)

// Config configures a Controller.
type Config struct {
	// Reserved are the ports that components of the cluster serve at the addresses of nodes. A Service
	// with such a port gets no addresses, because it would take over the connections of the component. They have no
	// effect on Services with addresses of Pool.
	Reserved []Port
	// Pool contains the addresses of Services. If it is empty, Services have the addresses of nodes.
	Pool addresspool.Pool
}

// Class is the value of spec.loadBalancerClass of the Services that the controller handles, besides those without a
// class.
const Class = "hyperkube"

// Controller assigns addresses to Services of type LoadBalancer, and removes them when a Service no longer needs them.
type Controller struct {
	*control.Loop
	// pool is nil if Services have the addresses of nodes.
	pool     *poolState
	env      control.Env
	reserved map[Port]bool
	services corelisters.ServiceLister
	index    cache.Indexer // of Services, with the index byPort
	nodes    corelisters.NodeLister
	slices   discoverylisters.EndpointSliceLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It adds an index to
// the informer of Services. The caller then starts the informers and calls Run.
func New(env control.Env, cfg Config) (*Controller, error) {
	env = env.Defaulted()
	services, nodes, slices := env.Informers.Core().V1().Services(), env.Informers.Core().V1().Nodes(), env.Informers.Discovery().V1().EndpointSlices()
	c := &Controller{
		env: env, reserved: map[Port]bool{}, services: services.Lister(), index: services.Informer().GetIndexer(),
		nodes: nodes.Lister(), slices: slices.Lister(),
	}
	for _, p := range cfg.Reserved {
		c.reserved[p] = true
	}
	if err := services.Informer().AddIndexers(cache.Indexers{byPort: indexPorts}); err != nil {
		return nil, fmt.Errorf("indexing Services by port: %w", err)
	}
	if !cfg.Pool.IsEmpty() {
		// Claims of addresses depend on the order of syncs, so one worker syncs.
		env.Workers = 1
		c.pool = newPoolState(env, cfg.Pool)
	}
	c.Loop = control.NewLoop(env, "load-balancer", c.sync)
	if err := c.watch(services.Informer(), nodes.Informer(), slices.Informer()); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// watch adds the event handlers to the informers.
func (c *Controller) watch(services, nodes, slices cache.SharedIndexInformer) error {
	if c.pool != nil {
		c.Prepare(c.claimAssigned)
		if err := c.watchLeases(); err != nil {
			return err
		}
	}
	if err := c.Watch(services, control.Handlers(
		c.enqueueService,
		func(old, cur *corev1.Service) {
			c.enqueueSharing(old)
			c.enqueueService(cur)
		},
		func(svc *corev1.Service) {
			c.enqueueSharing(svc)
			if c.pool != nil {
				c.AddObject(svc)
			}
		})); err != nil {
		return err
	}
	changed := func() {
		if c.pool != nil {
			c.pool.changes.Add(1)
		}
		c.enqueueAll()
	}
	if err := c.Watch(nodes, control.Handlers(
		func(*corev1.Node) { changed() },
		func(old, cur *corev1.Node) {
			if !stateOf(old).equal(stateOf(cur)) {
				changed()
			}
		},
		func(*corev1.Node) { changed() })); err != nil {
		return err
	}
	return c.Watch(slices, control.AnyEvent(c.enqueueServiceOf))
}

// enqueueService enqueues a Service, and those that have a port in common with it.
func (c *Controller) enqueueService(svc *corev1.Service) {
	if handles(svc) || slices.Contains(svc.Finalizers, finalizer) {
		c.AddObject(svc)
	}
	c.enqueueSharing(svc)
}

// enqueueSharing enqueues the Services that have a port in common with svc, because its ports may have become
// free. It does nothing if each Service has its own addresses.
func (c *Controller) enqueueSharing(svc *corev1.Service) {
	if c.pool != nil {
		return
	}
	for _, port := range portsOf(svc) {
		sharing, err := c.index.ByIndex(byPort, port.String())
		if err != nil {
			continue // the index exists
		}
		for _, obj := range sharing {
			c.AddObject(obj)
		}
	}
}

// enqueueAll enqueues all Services that the controller handles.
func (c *Controller) enqueueAll() {
	all, err := c.services.List(labels.Everything())
	if err != nil {
		return // the cache returns no errors
	}
	for _, svc := range all {
		if handles(svc) {
			c.AddObject(svc)
		}
	}
}

// enqueueServiceOf enqueues the Service of an EndpointSlice if its addresses depend on the endpoints.
func (c *Controller) enqueueServiceOf(slice *discoveryv1.EndpointSlice) {
	svc, err := c.services.Services(slice.Namespace).Get(slice.Labels[discoveryv1.LabelServiceName])
	if err == nil && handles(svc) && isLocal(svc) {
		c.AddObject(svc)
	}
}

// sync assigns addresses to a Service, or clears them if the Service does not need them any more. If key has
// leasePrefix, it checks the Lease of a node.
func (c *Controller) sync(ctx context.Context, key string) error {
	if node, ok := strings.CutPrefix(key, leasePrefix); ok {
		c.syncLease(ctx, node)
		return nil
	}
	namespace, name := control.SplitKey(key)
	svc, err := c.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.forgetClaims(key)
		return nil
	}
	if err != nil {
		return err
	}
	assigned := slices.Contains(svc.Finalizers, finalizer)
	switch {
	case !handles(svc) && assigned:
		return c.release(ctx, svc)
	case !handles(svc):
		c.forgetClaims(key)
		return nil
	case isForeign(svc):
		if c.pool != nil {
			c.pool.claims.set(key, c.pool.assignedTo(svc)...)
		}
		return nil
	case c.pool != nil:
		return c.assignFromPool(ctx, svc)
	}
	holder, err := c.conflict(svc)
	if err != nil {
		return err
	}
	if holder != "" {
		return c.refuse(ctx, svc, holder)
	}
	return c.assign(ctx, svc)
}

// conflict returns a text such as "port 80/TCP is used by Service default/web" if another Service or a component keeps
// a port that svc needs. It returns "" if all ports are free.
func (c *Controller) conflict(svc *corev1.Service) (string, error) {
	for _, port := range portsOf(svc) {
		if c.reserved[port] {
			return fmt.Sprintf("port %s is used by a component of the cluster", port), nil
		}
		sharing, err := c.index.ByIndex(byPort, port.String())
		if err != nil {
			return "", err
		}
		for _, obj := range sharing {
			if other, ok := obj.(*corev1.Service); ok && !isForeign(other) && precedes(other, svc) {
				return fmt.Sprintf("port %s is used by Service %s/%s", port, other.Namespace, other.Name), nil
			}
		}
	}
	return "", nil
}

// assign writes the addresses of svc to its status and emits an event if they changed. It also emits an event if no
// node can be used.
func (c *Controller) assign(ctx context.Context, svc *corev1.Service) error {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	endpoints, err := c.endpointsOf(svc)
	if err != nil {
		return err
	}
	ingress := addresses(svc, nodes, endpoints)
	if len(ingress) == 0 {
		c.env.Events.Event(svc, corev1.EventTypeWarning, "UnAvailableLoadBalancer", "There are no available nodes for LoadBalancer")
	}
	next := svc.DeepCopy()
	if !slices.Contains(next.Finalizers, finalizer) {
		next.Finalizers = append(next.Finalizers, finalizer)
	}
	next.Status.LoadBalancer.Ingress = ingress
	clearPool(next)
	if meta.FindStatusCondition(next.Status.Conditions, corev1.LoadBalancerPortsError) != nil {
		c.setCondition(next, corev1.LoadBalancerPortsError, metav1.ConditionFalse, reasonPortsAvailable, "All ports are available")
	}
	changed, err := c.write(ctx, svc, next)
	if err != nil || !changed || len(ingress) == 0 {
		return err
	}
	if len(svc.Status.LoadBalancer.Ingress) == 0 {
		c.env.Events.Event(svc, corev1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer")
	} else {
		c.env.Events.Event(svc, corev1.EventTypeNormal, "UpdatedLoadBalancer", "Updated load balancer with new hosts")
	}
	return nil
}

// refuse removes the addresses of svc, because another Service or a component has one of its ports. problem is a text
// from conflict; it becomes part of the condition and of an event.
func (c *Controller) refuse(ctx context.Context, svc *corev1.Service, problem string) error {
	next := svc.DeepCopy()
	next.Status.LoadBalancer.Ingress = nil
	clearPool(next)
	c.setCondition(next, corev1.LoadBalancerPortsError, metav1.ConditionTrue, reasonPortConflict, problem)
	changed, err := c.write(ctx, svc, next)
	if err != nil || !changed {
		return err
	}
	c.env.Events.Eventf(svc, corev1.EventTypeWarning, "SyncLoadBalancerFailed", "Error syncing load balancer: %s", problem)
	return nil
}

// release clears the addresses of svc, which is being deleted or does not need them any more, and removes the
// finalizer.
func (c *Controller) release(ctx context.Context, svc *corev1.Service) error {
	next := svc.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == finalizer })
	next.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	meta.RemoveStatusCondition(&next.Status.Conditions, corev1.LoadBalancerPortsError)
	clearPool(next)
	if _, err := c.write(ctx, svc, next); err != nil {
		return err
	}
	c.forgetClaims(keyOf(svc))
	c.env.Events.Event(svc, corev1.EventTypeNormal, "DeletedLoadBalancer", "Deleted load balancer")
	return nil
}

// clearPool removes what the assignment of addresses of a pool has added to svc, besides the addresses. It modifies svc.
func clearPool(svc *corev1.Service) {
	delete(svc.Annotations, netannotation.LoadBalancerNode)
	meta.RemoveStatusCondition(&svc.Status.Conditions, conditionAddressError)
}

// endpointsOf returns the EndpointSlices of svc, if its addresses depend on them.
func (c *Controller) endpointsOf(svc *corev1.Service) ([]*discoveryv1.EndpointSlice, error) {
	if !isLocal(svc) {
		return nil, nil
	}
	return c.slices.EndpointSlices(svc.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: svc.Name}))
}

// setCondition sets a condition in the status of svc, which it modifies.
func (c *Controller) setCondition(svc *corev1.Service, kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&svc.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		ObservedGeneration: svc.Generation, LastTransitionTime: metav1.NewTime(c.env.Clock.Now()),
	})
}

// write writes the difference between old and next to the API server. It reports false if there is no difference, or
// the Service does not exist any more. It returns a conflict error if the Service has changed since old was read.
func (c *Controller) write(ctx context.Context, old, next *corev1.Service) (changed bool, err error) {
	if equality.Semantic.DeepEqual(old, next) {
		return false, nil
	}
	before, err := json.Marshal(old)
	if err != nil {
		return false, fmt.Errorf("encoding Service: %w", err)
	}
	after, err := json.Marshal(next)
	if err != nil {
		return false, fmt.Errorf("encoding Service: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Service{})
	if err != nil {
		return false, fmt.Errorf("computing the change of a Service: %w", err)
	}
	if patch, err = withVersion(patch, old); err != nil {
		return false, err
	}
	_, err = c.env.Kube.CoreV1().Services(old.Namespace).Patch(ctx, old.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("updating status of Service: %w", err)
	}
	return true, nil
}

// withVersion adds the UID and the resource version of svc to a patch, so that the API server rejects the patch if the
// Service has changed.
func withVersion(patch []byte, svc *corev1.Service) ([]byte, error) {
	var fields map[string]any
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, fmt.Errorf("decoding the change of a Service: %w", err)
	}
	metadata, ok := fields["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		fields["metadata"] = metadata
	}
	metadata["uid"], metadata["resourceVersion"] = svc.UID, svc.ResourceVersion
	return json.Marshal(fields)
}
