// Package endpoints maintains the Endpoints of Services with a selector, for clients that do not
// use EndpointSlices yet.
package endpoints

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/endpointslice"
	sliceutil "k8s.io/endpointslice/util"
	utilnet "k8s.io/utils/net"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/servicepods"
	"hyperkube/internal/pod/podutil"
)

const (
	// maxAddresses is the maximum number of addresses in an Endpoints object.
	maxAddresses = 1000
	// truncated is the value of the annotation EndpointsOverCapacity if addresses were removed.
	truncated = "truncated"
	// managedByLabel and managedBy are the label of the Endpoints that this controller writes, and its value.
	managedByLabel = "endpoints.kubernetes.io/managed-by"
	managedBy      = "endpoint-controller"
)

// Controller writes the Endpoints of each Service with a selector, from the addresses and readiness of its pods. It
// deletes the Endpoints of deleted Services.
type Controller struct {
	*control.Loop
	env       control.Env
	services  corelisters.ServiceLister
	pods      corelisters.PodLister
	endpoints corelisters.EndpointsLister
	triggers  *sliceutil.TriggerTimeTracker
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	core := env.Informers.Core().V1()
	services, pods, endpoints := core.Services(), core.Pods(), core.Endpoints()
	c := &Controller{
		env:       env,
		services:  services.Lister(),
		pods:      pods.Lister(),
		endpoints: endpoints.Lister(),
		triggers:  sliceutil.NewTriggerTimeTracker(),
	}
	c.Loop = control.NewLoop(env, "endpoints", c.sync)
	// Also sync Endpoints whose Service was deleted while the controller was not running.
	c.Prepare(func(context.Context) error {
		all, err := c.endpoints.List(labels.Everything())
		for _, e := range all {
			if _, lock := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]; !lock {
				c.AddObject(e)
			}
		}
		return err
	})
	if err := c.Watch(services.Informer(), control.AnyEvent(func(s *corev1.Service) { c.AddObject(s) })); err != nil {
		return nil, err
	}
	if err := servicepods.Watch(c.Loop, env); err != nil {
		return nil, err
	}
	return c, c.Watch(endpoints.Informer(), control.Handlers(c.enqueueOrphan, nil, func(e *corev1.Endpoints) { c.AddObject(e) }))
}

// enqueueOrphan enqueues Endpoints that this controller created and whose Service may have been deleted
// before the cache contained them.
func (c *Controller) enqueueOrphan(e *corev1.Endpoints) {
	if e.Labels[managedByLabel] != managedBy {
		return
	}
	if _, err := c.services.Services(e.Namespace).Get(e.Name); apierrors.IsNotFound(err) {
		c.AddObject(e)
	}
}

// sync updates the Endpoints of the Service with the key, or deletes them if the Service does not exist. It leaves the
// Endpoints of Services without a selector and of type ExternalName unchanged.
func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	svc, err := c.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.triggers.DeleteService(namespace, name)
		if _, err := c.endpoints.Endpoints(namespace).Get(name); apierrors.IsNotFound(err) {
			return nil
		}
		err := c.env.Kube.CoreV1().Endpoints(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	if err != nil {
		return err
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.Selector == nil {
		return nil
	}
	pods, err := c.pods.Pods(namespace).List(labels.Set(svc.Spec.Selector).AsSelectorPreValidated())
	if err != nil {
		return err
	}
	trigger := c.triggers.ComputeEndpointLastChangeTriggerTime(namespace, svc, pods)
	subsets := pack(entries(svc, pods))
	return c.write(ctx, svc, subsets, trigger)
}

// write creates or updates the Service's Endpoints with subsets, of which it keeps at most maxAddresses addresses; it
// modifies subsets. trigger is the time of the last change that caused the update, or zero if it is unknown. Errors are
// emitted as events too.
func (c *Controller) write(ctx context.Context, svc *corev1.Service, subsets []corev1.EndpointSubset, trigger time.Time) error {
	cut := truncate(subsets, maxAddresses)
	subsets = slices.DeleteFunc(subsets, func(s corev1.EndpointSubset) bool { return len(s.Addresses)+len(s.NotReadyAddresses) == 0 })
	want := maps.Clone(svc.Labels)
	if want == nil {
		want = map[string]string{}
	}
	want[managedByLabel] = managedBy
	if svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == "" {
		want[corev1.IsHeadlessService] = ""
	} else {
		delete(want, corev1.IsHeadlessService)
	}
	current, err := c.endpoints.Endpoints(svc.Namespace).Get(svc.Name)
	create := apierrors.IsNotFound(err)
	if err != nil && !create {
		return err
	}
	if create {
		current = &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: svc.Name, Namespace: svc.Namespace}}
	}
	noted, isNoted := current.Annotations[corev1.EndpointsOverCapacity]
	if !create && maps.Equal(current.Labels, want) && sameSubsets(current.Subsets, subsets) && isNoted == cut && (!cut || noted == truncated) {
		return nil
	}
	next := current.DeepCopy()
	next.Subsets = subsets
	next.Labels = want
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	if trigger.IsZero() {
		delete(next.Annotations, corev1.EndpointsLastChangeTriggerTime)
	} else {
		next.Annotations[corev1.EndpointsLastChangeTriggerTime] = trigger.UTC().Format(time.RFC3339Nano)
	}
	if cut {
		next.Annotations[corev1.EndpointsOverCapacity] = truncated
	} else {
		delete(next.Annotations, corev1.EndpointsOverCapacity)
	}
	if create {
		_, err = c.env.Kube.CoreV1().Endpoints(svc.Namespace).Create(ctx, next, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		// If it already exists, it was created a moment ago and is not in the cache yet.
		if err != nil && !apierrors.IsAlreadyExists(err) {
			c.env.Events.Eventf(next, corev1.EventTypeWarning, "FailedToCreateEndpoint", "Failed to create endpoint for service %v/%v: %v", svc.Namespace, svc.Name, err)
		}
		return err
	}
	_, err = c.env.Kube.CoreV1().Endpoints(svc.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) {
		c.env.Events.Eventf(next, corev1.EventTypeWarning, "FailedToUpdateEndpoint", "Failed to update endpoint %v/%v: %v", svc.Namespace, svc.Name, err)
	}
	return err
}

// entries returns an entry for each port of svc and each of the pods that has the port and belongs in the Endpoints.
// For a headless Service without ports, it returns one entry without a port for each pod. Pods without an address of
// the Service's IP family are omitted.
func entries(svc *corev1.Service, pods []*corev1.Pod) []entry {
	var out []entry
	unready := svc.Spec.PublishNotReadyAddresses
	for _, p := range pods {
		if !sliceutil.ShouldPodBeInEndpoints(p, unready) {
			continue
		}
		ip := podIP(svc, p)
		if ip == "" {
			continue
		}
		node := p.Spec.NodeName
		e := entry{
			address: corev1.EndpointAddress{
				IP:        ip,
				NodeName:  &node,
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
			},
			ready: unready || podutil.Ready(p),
		}
		if sliceutil.ShouldSetHostname(p, svc) {
			e.address.Hostname = p.Spec.Hostname
		}
		if len(svc.Spec.Ports) == 0 && svc.Spec.ClusterIP == corev1.ClusterIPNone {
			out = append(out, e)
			continue
		}
		for i := range svc.Spec.Ports {
			port := &svc.Spec.Ports[i]
			n, err := endpointslice.FindPort(p, port)
			if err != nil {
				continue // the pod does not have the named port
			}
			withPort := e
			withPort.port = &corev1.EndpointPort{Name: port.Name, Port: int32(n), Protocol: port.Protocol, AppProtocol: port.AppProtocol}
			out = append(out, withPort)
		}
	}
	return out
}

// podIP returns the pod's address of the Service's first IP family, or "" if it has none. If the Service specifies no
// family, it returns the pod's primary address.
func podIP(svc *corev1.Service, p *corev1.Pod) string {
	if len(svc.Spec.IPFamilies) == 0 {
		return p.Status.PodIP
	}
	six := svc.Spec.IPFamilies[0] == corev1.IPv6Protocol
	for _, ip := range p.Status.PodIPs {
		if ip.IP != "" && utilnet.IsIPv6String(ip.IP) == six {
			return ip.IP
		}
	}
	return ""
}

// sameSubsets reports whether a and b contain the same addresses and ports, in any order.
func sameSubsets(a, b []corev1.EndpointSubset) bool {
	if len(a) != len(b) {
		return false
	}
	if equality.Semantic.DeepEqual(a, b) {
		return true
	}
	// Another release may have written them in another order.
	return equality.Semantic.DeepEqual(pack(unpack(a)), pack(unpack(b)))
}

// unpack returns an entry for each address and port of subsets. It is the inverse of pack, except for the order.
func unpack(subsets []corev1.EndpointSubset) []entry {
	var out []entry
	for _, s := range subsets {
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for _, a := range addresses {
				if len(s.Ports) == 0 {
					out = append(out, entry{address: a, ready: ready})
				}
				for _, p := range slices.Clone(s.Ports) {
					out = append(out, entry{address: a, ready: ready, port: &p})
				}
			}
		}
		add(s.Addresses, true)
		add(s.NotReadyAddresses, false)
	}
	return out
}
