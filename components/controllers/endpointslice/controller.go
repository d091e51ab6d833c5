// Package endpointslice maintains the EndpointSlices of Services with a selector. The library
// k8s.io/endpointslice computes and writes the slices; this package decides when to call it.
//
// https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/
package endpointslice

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/endpointslice"
	"k8s.io/endpointslice/metrics"
	"k8s.io/endpointslice/topologycache"
	sliceutil "k8s.io/endpointslice/util"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/servicepods"
)

// controllerName is the value of the managed-by label of the slices.
const controllerName = "endpointslice-controller.k8s.io"

// maxEndpointsPerSlice is the default maximum number of endpoints in a slice. It is the same as upstream.
const maxEndpointsPerSlice = 100

// ByService is the name of the index of EndpointSlices by Service that AddServiceIndex adds. Its keys have the form
// namespace/name.
const ByService = "service"

// Controller writes the EndpointSlices of each Service with a selector, from the addresses and readiness of its pods.
// It also sets topology hints, from the zones and CPUs of the nodes.
type Controller struct {
	*control.Loop
	env        control.Env
	logger     logr.Logger
	services   corelisters.ServiceLister
	pods       corelisters.PodLister
	nodes      corelisters.NodeLister
	slices     cache.Indexer
	tracker    *sliceutil.EndpointSliceTracker
	triggers   *sliceutil.TriggerTimeTracker
	topology   *topologycache.TopologyCache
	reconciler *endpointslice.Reconciler
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. perSlice is the
// maximum number of endpoints in a slice; zero means maxEndpointsPerSlice. It adds an index to the informer of slices.
// The caller then starts the informers and calls Run.
func New(env control.Env, perSlice int32) (*Controller, error) {
	env = env.Defaulted()
	if perSlice == 0 {
		perSlice = maxEndpointsPerSlice
	}
	core := env.Informers.Core().V1()
	services, pods, nodes := core.Services(), core.Pods(), core.Nodes()
	slices := env.Informers.Discovery().V1().EndpointSlices()
	c := &Controller{
		env: env,
		// Messages that the library logs at the default level are debug messages here.
		logger:   logr.FromSlogHandler(env.Log.Handler()).V(4),
		services: services.Lister(),
		pods:     pods.Lister(),
		nodes:    nodes.Lister(),
		slices:   slices.Informer().GetIndexer(),
		tracker:  sliceutil.NewEndpointSliceTracker(),
		triggers: sliceutil.NewTriggerTimeTracker(),
		topology: topologycache.NewTopologyCache(),
	}
	c.reconciler = endpointslice.NewReconciler(env.Kube, c.nodes, perSlice, c.tracker, c.topology, env.Events, controllerName,
		endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	c.Loop = control.NewLoop(env, "endpointslice", c.syncWithMetrics)
	metrics.RegisterMetrics()
	// Count the zones before the first slice gets topology hints.
	c.Prepare(func(context.Context) error { return c.countZones() })
	if err := AddServiceIndex(slices.Informer()); err != nil {
		return nil, err
	}
	if err := c.Watch(services.Informer(), control.AnyEvent(func(s *corev1.Service) { c.AddObject(s) })); err != nil {
		return nil, err
	}
	if err := servicepods.Watch(c.Loop, env); err != nil {
		return nil, err
	}
	if err := c.Watch(nodes.Informer(), control.Handlers(
		func(*corev1.Node) { c.nodesChanged() },
		func(old, cur *corev1.Node) {
			if topologyOf(old) != topologyOf(cur) {
				c.nodesChanged()
			}
		},
		func(*corev1.Node) { c.nodesChanged() },
	)); err != nil {
		return nil, err
	}
	return c, c.Watch(slices.Informer(), control.Handlers(c.sliceAdded, c.sliceChanged, c.sliceDeleted))
}

// AddServiceIndex adds the index ByService to an informer of EndpointSlices, unless the informer already has it. It
// returns an error if the informer was stopped.
func AddServiceIndex(informer cache.SharedIndexInformer) error {
	if _, ok := informer.GetIndexer().GetIndexers()[ByService]; ok {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{ByService: func(obj any) ([]string, error) {
		s, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok || s.Labels[discoveryv1.LabelServiceName] == "" {
			return nil, nil
		}
		return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
	}})
}

// addOwner enqueues the Service of s, if s has the label that names it.
func (c *Controller) addOwner(s *discoveryv1.EndpointSlice) {
	if key, err := endpointslice.ServiceControllerKey(s); err == nil {
		c.Add(key)
	}
}

// sliceAdded enqueues the Service of s if s is managed by this controller, but differs from what it wrote last.
func (c *Controller) sliceAdded(s *discoveryv1.EndpointSlice) {
	if c.reconciler.ManagedByController(s) && c.tracker.ShouldSync(s) {
		c.addOwner(s)
	}
}

// sliceChanged enqueues the Service of a changed slice, unless this controller wrote the change. If the slice was moved
// to another Service, it enqueues both.
func (c *Controller) sliceChanged(old, cur *discoveryv1.EndpointSlice) {
	// A user changed the slice's Service: the former Service needs a new slice.
	if was, is := old.Labels[discoveryv1.LabelServiceName], cur.Labels[discoveryv1.LabelServiceName]; was != is {
		c.addOwner(old)
		c.addOwner(cur)
		return
	}
	if c.reconciler.ManagedByChanged(old, cur) || c.reconciler.ManagedByController(cur) && c.tracker.ShouldSync(cur) {
		c.addOwner(cur)
	}
}

// sliceDeleted enqueues the Service of a slice that another client deleted.
func (c *Controller) sliceDeleted(s *discoveryv1.EndpointSlice) {
	// A slice that was not deleted by this controller must be created again.
	if c.reconciler.ManagedByController(s) && c.tracker.Has(s) && !c.tracker.HandleDeletion(s) {
		c.addOwner(s)
	}
}

// nodeTopology contains the properties of a Node that determine topology hints.
type nodeTopology struct {
	zone, cpu string
	ready     corev1.ConditionStatus
	excluded  bool
}

// topologyOf returns the properties of n that determine topology hints. Nodes of the control plane are excluded.
func topologyOf(n *corev1.Node) nodeTopology {
	p := nodeTopology{zone: n.Labels[corev1.LabelTopologyZone], cpu: n.Status.Allocatable.Cpu().String()}
	_, a := n.Labels["node-role.kubernetes.io/control-plane"]
	_, b := n.Labels["node-role.kubernetes.io/master"]
	p.excluded = a || b
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			p.ready = cond.Status
		}
	}
	return p
}

// countZones updates the topology cache with all nodes, from which it computes how many endpoints each zone needs.
func (c *Controller) countZones() error {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	c.topology.SetNodes(c.logger, nodes)
	return nil
}

// nodesChanged updates the topology cache, and enqueues the Services whose hints overload a zone with the new
// distribution of CPUs.
func (c *Controller) nodesChanged() {
	if err := c.countZones(); err != nil {
		return
	}
	for _, key := range c.topology.GetOverloadedServices() {
		c.Add(key)
	}
}

// syncWithMetrics calls sync and counts its result in the endpointslice library's metrics: success, stale or error.
func (c *Controller) syncWithMetrics(ctx context.Context, key string) error {
	err := c.sync(ctx, key)
	result := "success"
	switch {
	case errors.Is(err, control.ErrStale):
		result = "stale"
	case err != nil:
		result = "error"
	}
	metrics.EndpointSliceSyncs.WithLabelValues(result).Inc()
	return err
}

// sync updates the slices of the Service with the key. It ignores Services without a selector and of type
// ExternalName. It returns control.ErrStale if the cache does not yet contain the slices that were written last.
func (c *Controller) sync(_ context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	svc, err := c.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.triggers.DeleteService(namespace, name)
		c.reconciler.DeleteService(namespace, name)
		c.tracker.DeleteService(namespace, name)
		return nil
	}
	if err != nil {
		return err
	}
	// The EndpointSlices of Services without a selector are mirrored from Endpoints, if any.
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.Selector == nil {
		return nil
	}
	pods, err := c.pods.Pods(namespace).List(labels.Set(svc.Spec.Selector).AsSelectorPreValidated())
	if err != nil {
		return err
	}
	objs, err := c.slices.ByIndex(ByService, key)
	if err != nil {
		return err
	}
	var slices []*discoveryv1.EndpointSlice
	for _, o := range objs {
		s, ok := o.(*discoveryv1.EndpointSlice)
		// Slices that are being deleted cannot be updated any more.
		if ok && s.DeletionTimestamp == nil && s.Labels[discoveryv1.LabelManagedBy] == controllerName {
			slices = append(slices, s)
		}
	}
	if c.tracker.StaleSlices(svc, slices) {
		return control.ErrStale
	}
	trigger := c.triggers.ComputeEndpointLastChangeTriggerTime(namespace, svc, pods)
	if err := c.reconciler.Reconcile(c.logger, svc, pods, slices, trigger); err != nil {
		c.env.Events.Eventf(svc, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s/%s: %v", namespace, name, err)
		return fmt.Errorf("reconciling endpoint slices: %w", err)
	}
	return nil
}
