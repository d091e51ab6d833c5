// Package endpointslicemirroring mirrors Endpoints of Services without a selector, which users
// maintain, to EndpointSlices.
package endpointslicemirroring

import (
	"context"
	"errors"
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	sliceutil "k8s.io/endpointslice/util"
	utilnet "k8s.io/utils/net"

	"hyperkube/components/controllers/endpoints"
	"hyperkube/components/controllers/endpointslice"
	"hyperkube/components/controllers/internal/control"
)

// controllerName is the value of the managed-by label of the slices.
const controllerName = "endpointslicemirroring-controller.k8s.io"

// maxPerSubset is the maximum number of addresses of a subset that are mirrored. Further addresses are reported in an
// event.
const maxPerSubset = 1000

// Controller mirrors the Endpoints of Services without a selector. It deletes the slices when the Endpoints or the
// Service is deleted.
type Controller struct {
	*control.Loop
	env       control.Env
	services  corelisters.ServiceLister
	endpoints corelisters.EndpointsLister
	slices    cache.Indexer
	tracker   *sliceutil.EndpointSliceTracker
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It adds an index to
// the informer of slices. The caller then starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	services, endpoints := env.Informers.Core().V1().Services(), env.Informers.Core().V1().Endpoints()
	slices := env.Informers.Discovery().V1().EndpointSlices()
	c := &Controller{
		env:       env,
		services:  services.Lister(),
		endpoints: endpoints.Lister(),
		slices:    slices.Informer().GetIndexer(),
		tracker:   sliceutil.NewEndpointSliceTracker(),
	}
	c.Loop = control.NewLoop(env, "endpointslicemirroring", c.sync)
	if err := endpointslice.AddServiceIndex(slices.Informer()); err != nil {
		return nil, err
	}
	if err := c.Watch(endpoints.Informer(), control.Handlers(
		func(e *corev1.Endpoints) {
			if shouldMirror(e) {
				c.AddObject(e)
			}
		},
		func(old, cur *corev1.Endpoints) {
			if shouldMirror(old) || shouldMirror(cur) {
				c.AddObject(cur)
			}
		},
		func(e *corev1.Endpoints) {
			if shouldMirror(e) {
				c.AddObject(e)
			}
		},
	)); err != nil {
		return nil, err
	}
	if err := c.Watch(services.Informer(), control.Handlers(
		func(s *corev1.Service) { c.AddObject(s) },
		func(old, cur *corev1.Service) {
			if (old.Spec.Selector == nil) != (cur.Spec.Selector == nil) {
				c.AddObject(cur)
			}
		},
		func(s *corev1.Service) { c.AddObject(s) },
	)); err != nil {
		return nil, err
	}
	add := func(s *discoveryv1.EndpointSlice) {
		if mine(s) && c.tracker.ShouldSync(s) {
			c.addOwner(s)
		}
	}
	return c, c.Watch(slices.Informer(), control.Handlers(add,
		func(old, cur *discoveryv1.EndpointSlice) {
			was, is := old.Labels[discoveryv1.LabelServiceName], cur.Labels[discoveryv1.LabelServiceName]
			if was != is || mine(old) != mine(cur) {
				c.addOwner(old)
				c.addOwner(cur)
				return
			}
			add(cur)
		},
		func(s *discoveryv1.EndpointSlice) {
			if mine(s) && c.tracker.Has(s) && !c.tracker.HandleDeletion(s) {
				c.addOwner(s)
			}
		}))
}

// mine reports whether this controller manages s.
func mine(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[discoveryv1.LabelManagedBy] == controllerName
}

// addOwner enqueues the Service of s, if s has the label that names it.
func (c *Controller) addOwner(s *discoveryv1.EndpointSlice) {
	if name := s.Labels[discoveryv1.LabelServiceName]; name != "" {
		c.Add(s.Namespace + "/" + name)
	}
}

// shouldMirror reports whether e is mirrored: it is not used for leader election, and does not have the label that
// prevents mirroring.
func shouldMirror(e *corev1.Endpoints) bool {
	_, lock := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]
	return !lock && e.Labels[discoveryv1.LabelSkipMirror] != "true"
}

// sync updates the slices that mirror the Endpoints with the key. It deletes them if the Endpoints must not be
// mirrored, or their Service does not exist or has a selector.
func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	objs, err := c.slices.ByIndex(endpointslice.ByService, key)
	if err != nil {
		return err
	}
	var existing []*discoveryv1.EndpointSlice
	for _, o := range objs {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && mine(s) && s.DeletionTimestamp == nil {
			existing = append(existing, s)
		}
	}
	e, err := c.endpoints.Endpoints(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	svc, svcErr := c.services.Services(namespace).Get(name)
	if svcErr != nil && !apierrors.IsNotFound(svcErr) {
		return svcErr
	}
	if err != nil || svcErr != nil || !shouldMirror(e) || svc.Spec.Selector != nil {
		c.tracker.DeleteService(namespace, name)
		return c.write(ctx, nil, existing, nil)
	}
	if c.tracker.StaleSlices(svc, existing) {
		return control.ErrStale
	}
	return c.write(ctx, e, existing, c.desiredSlices(e))
}

// desiredSlices returns the slices that mirror e: one for each set of ports and IP family. It emits an event for
// invalid addresses and one for addresses above the limit, which it omits.
func (c *Controller) desiredSlices(e *corev1.Endpoints) []*discoveryv1.EndpointSlice {
	meta := metav1.ObjectMeta{
		GenerateName:    control.PodPrefix(e.Name),
		Namespace:       e.Namespace,
		Labels:          map[string]string{},
		Annotations:     map[string]string{},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(e, corev1.SchemeGroupVersion.WithKind("Endpoints"))},
	}
	maps.Copy(meta.Labels, e.Labels)
	meta.Labels[discoveryv1.LabelServiceName] = e.Name
	meta.Labels[discoveryv1.LabelManagedBy] = controllerName
	maps.Copy(meta.Annotations, e.Annotations)
	for _, own := range []string{corev1.EndpointsLastChangeTriggerTime, corev1.LastAppliedConfigAnnotation} {
		delete(meta.Annotations, own)
	}
	var out []*discoveryv1.EndpointSlice
	byKey := map[string]*discoveryv1.EndpointSlice{}
	invalid, skipped := 0, 0
	for _, subset := range endpoints.Repack(e.Subsets) {
		ports := convertPorts(subset.Ports)
		n := 0
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for i := range addresses {
				if n >= maxPerSubset {
					skipped++
					continue
				}
				// Endpoints may contain IP address formats that are invalid in slices.
				ip := utilnet.ParseIPSloppy(addresses[i].IP)
				if ip == nil {
					invalid++
					continue
				}
				addresses[i].IP = ip.String()
				family := discoveryv1.AddressTypeIPv4
				if ip.To4() == nil {
					family = discoveryv1.AddressTypeIPv6
				}
				n++
				k := sliceKey(family, ports)
				s := byKey[k]
				if s == nil {
					s = &discoveryv1.EndpointSlice{ObjectMeta: *meta.DeepCopy(), AddressType: family, Ports: ports}
					byKey[k] = s
					out = append(out, s)
				}
				if len(s.Endpoints) < maxPerSubset {
					s.Endpoints = append(s.Endpoints, convertAddress(addresses[i], ready))
				} else {
					skipped++
				}
			}
		}
		add(subset.Addresses, true)
		add(subset.NotReadyAddresses, false)
	}
	if invalid > 0 {
		c.env.Events.Eventf(e, corev1.EventTypeWarning, "InvalidIPAddress", "Skipped %d invalid IP addresses when mirroring to EndpointSlices", invalid)
	}
	if skipped > 0 {
		c.env.Events.Eventf(e, corev1.EventTypeWarning, "TooManyAddressesToMirror", "A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped", maxPerSubset, skipped+invalid)
	}
	return out
}

// sliceKey identifies a slice of one Service by its IP family and ports.
func sliceKey(family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) string {
	return string(family) + string(sliceutil.NewPortMapKey(ports))
}

// convertPorts converts ports of Endpoints to ports of slices.
func convertPorts(in []corev1.EndpointPort) []discoveryv1.EndpointPort {
	out := []discoveryv1.EndpointPort{}
	for _, p := range in {
		name, port, protocol := p.Name, p.Port, p.Protocol
		out = append(out, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &protocol, AppProtocol: p.AppProtocol})
	}
	return out
}

// convertAddress converts an address of Endpoints to an endpoint of a slice.
func convertAddress(a corev1.EndpointAddress, ready bool) discoveryv1.Endpoint {
	ep := discoveryv1.Endpoint{
		Addresses:  []string{a.IP},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef:  a.TargetRef,
		NodeName:   a.NodeName,
	}
	if a.Hostname != "" {
		host := a.Hostname
		ep.Hostname = &host
	}
	return ep
}

// write creates, updates and deletes slices until existing matches want. e are the mirrored Endpoints; it may be nil
// only if want is empty. It tries all slices even if some fail.
func (c *Controller) write(ctx context.Context, e *corev1.Endpoints, existing, want []*discoveryv1.EndpointSlice) error {
	byKey := map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range existing {
		k := sliceKey(s.AddressType, s.Ports)
		byKey[k] = append(byKey[k], s)
	}
	// A slice with ports that are no longer needed is updated rather than replaced.
	wanted := map[string]int{}
	for _, s := range want {
		wanted[sliceKey(s.AddressType, s.Ports)]++
	}
	free := map[discoveryv1.AddressType][]*discoveryv1.EndpointSlice{}
	for k, have := range byKey {
		if n := wanted[k]; n < len(have) {
			free[have[0].AddressType] = append(free[have[0].AddressType], have[n:]...)
			byKey[k] = have[:n]
		}
	}
	var errs []error
	for _, s := range want {
		k := sliceKey(s.AddressType, s.Ports)
		if left := free[s.AddressType]; len(byKey[k]) == 0 && len(left) > 0 {
			byKey[k], free[s.AddressType] = left[:1], left[1:]
		}
		api := c.env.Kube.DiscoveryV1().EndpointSlices(s.Namespace)
		if have := byKey[k]; len(have) > 0 {
			byKey[k] = have[1:]
			old := have[0]
			if equality.Semantic.DeepEqual(old.Endpoints, s.Endpoints) && equality.Semantic.DeepEqual(old.Labels, s.Labels) &&
				equality.Semantic.DeepEqual(old.Annotations, s.Annotations) && sliceKey(old.AddressType, old.Ports) == k &&
				equality.Semantic.DeepEqual(old.OwnerReferences, s.OwnerReferences) {
				if !c.tracker.Has(old) {
					// Track the slice, because only tracked slices are recreated when a client
					// deletes them.
					c.tracker.Update(old)
				}
				continue
			}
			next := old.DeepCopy()
			next.Labels, next.Annotations, next.Endpoints, next.Ports = s.Labels, s.Annotations, s.Endpoints, s.Ports
			// The former Endpoints of the same name were deleted, and the garbage collector would
			// delete the slice with them.
			next.OwnerReferences = s.OwnerReferences
			written, err := api.Update(ctx, next, metav1.UpdateOptions{})
			if err != nil {
				errs = append(errs, err)
				continue
			}
			c.tracker.Update(written)
			continue
		}
		if e.DeletionTimestamp != nil {
			continue
		}
		written, err := api.Create(ctx, s, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.tracker.Update(written)
	}
	for _, rest := range free {
		for _, s := range rest {
			err := c.env.Kube.DiscoveryV1().EndpointSlices(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, err)
				continue
			}
			if e != nil {
				c.tracker.ExpectDeletion(s)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		if e != nil {
			c.env.Events.Eventf(e, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices", "Error updating EndpointSlices for Endpoints %s/%s: %v", e.Namespace, e.Name, err)
		}
		return err
	}
	return nil
}
