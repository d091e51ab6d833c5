// Package controller connects the gateway with the API: it translates the objects in its informers, configures the data
// plane with the result, and writes the status of the objects.
//
// Every replica serves all routes. One of them, the leader, also writes statuses and the Services through which clients
// reach the gateway. All Services select the same pods: a Service maps each of its ports to a local port of the pods that no other
// Service uses, so that the local port identifies the Service and the port that a client has connected to.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
	"hyperkube/components/gateway/translate"
	"hyperkube/internal/base/broadcast"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/client"
	"hyperkube/internal/client/leaderelection"
)

// Plane is the data plane, which serves the ports of Gateways and passes requests to backends.
type Plane interface {
	Apply(*model.Config, map[model.BackendKey]*model.Backend, map[model.PortID]int32) map[model.PortID]error
	SetEndpoints(*model.Backend, []model.Endpoint)
}

// Config configures a Controller, which translates objects of the API for the data plane.
type Config struct {
	Clients *client.Clients
	Plane   Plane
	// Namespace is that of the gateway's pods, and Owner the name of their DaemonSet, which owns the Services.
	Namespace, Owner string
	// Selector selects the pods.
	Selector map[string]string
	Log      *slog.Logger
}

// maxPause is the longest time between two translations, while objects change continuously.
const maxPause = 50 * time.Millisecond

// Controller translates Gateways, Ingresses and their routes to the configuration of the data plane, and writes their
// statuses.
type Controller struct {
	cfg    Config
	src    *sources
	lookup *lookup
	ready  chan struct{}
	// changed receives a value when an object may have changed.
	changed chan struct{}
	// result is the last translation. The leader writes it to the API when translated is sent.
	result     atomic.Pointer[translate.Result]
	translated broadcast.Broadcast

	mu         sync.Mutex                                // guards backends
	backends   map[types.NamespacedName][]*model.Backend // in use, by Service
	running    sync.WaitGroup                            // informers
	translator translate.Translator                      // used by reconcile only
	// followsConfigMaps is true if the informer of ConfigMaps was started. Only reconcile uses it.
	followsConfigMaps bool
}

// New validates cfg, registers with the informers and returns a Controller, which does nothing before Run. It returns
// an error if a field of cfg is not set.
func New(cfg Config) (*Controller, error) {
	if cfg.Clients == nil || cfg.Plane == nil || cfg.Namespace == "" || cfg.Owner == "" || len(cfg.Selector) == 0 || cfg.Log == nil {
		return nil, errors.New("the controller of the gateway requires clients, a data plane, the namespace, owner and labels of its pods, and a logger")
	}
	src, err := newSources(cfg.Clients)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		cfg: cfg, src: src, lookup: &lookup{src, map[string]parsed{}}, ready: make(chan struct{}), changed: make(chan struct{}, 1),
		backends: map[types.NamespacedName][]*model.Backend{},
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.notify() },
		UpdateFunc: func(old, cur any) {
			if matters(old, cur) {
				c.notify()
			}
		},
		DeleteFunc: func(any) { c.notify() },
	}
	for _, informer := range append(src.all(), src.configMaps) {
		h := cache.ResourceEventHandler(handler)
		if informer == src.endpointSlices {
			h = cache.ResourceEventHandlerFuncs{
				AddFunc: c.endpointsChanged, UpdateFunc: func(_, cur any) { c.endpointsChanged(cur) }, DeleteFunc: c.endpointsChanged,
			}
		}
		if _, err := informer.AddEventHandler(h); err != nil {
			return nil, fmt.Errorf("registering with informer: %w", err)
		}
	}
	return c, nil
}

// Ready returns a channel that is closed when the data plane serves the objects that existed at the start.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// notify requests that Run translates all objects again. Requests that Run has not handled yet are combined.
func (c *Controller) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Run runs the informers and keeps the data plane up to date, until ctx is done. It also takes part in the election of
// the leader, and returns an error only if the election fails.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer c.running.Wait()
	defer c.cfg.Clients.Informers.Shutdown()
	defer cancel()
	c.cfg.Clients.Informers.StartWithContext(ctx)
	var synced []cache.DoneChecker
	for _, informer := range c.src.own() {
		c.running.Go(func() { informer.RunWithContext(ctx) })
	}
	for _, informer := range c.src.all() {
		synced = append(synced, informer.HasSyncedChecker())
	}
	if !cache.WaitFor(ctx, "", synced...) {
		return nil
	}
	failed := make(chan error, 1)
	leading := lifecycle.StartTask(ctx, func(ctx context.Context) { failed <- c.elect(ctx) })
	defer leading.Stop()
	for first := true; ; first = false {
		began := time.Now()
		c.reconcile(ctx)
		if first {
			close(c.ready)
		}
		// While objects change continuously, translating uses half of the time.
		if !lifecycle.Pause(ctx, min(time.Since(began), maxPause)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return err
		case <-c.changed:
		}
	}
}

// elect runs the writer while this process is the leader.
func (c *Controller) elect(ctx context.Context) error {
	e := leaderelection.Election{Namespace: c.cfg.Namespace}.WithDefaults(c.cfg.Owner)
	return leaderelection.Run(ctx, e, c.cfg.Clients.Kube, nil, func(ctx context.Context) error {
		c.cfg.Log.Info("elected as the leader of the gateways, writing statuses and Services")
		return newWriter(c).run(ctx)
	})
}

// reconcile translates all objects and configures the data plane. It starts the informer of ConfigMaps when the first
// object refers to a ConfigMap. A port that cannot be opened is only logged. It does nothing if ctx is done before
// ConfigMaps are synced.
func (c *Controller) reconcile(ctx context.Context) {
	objects := c.objects()
	if !c.followsConfigMaps && refersToConfigMaps(objects.Gateways, objects.BackendPolicies) {
		c.followsConfigMaps = true
		c.running.Go(func() { c.src.configMaps.RunWithContext(ctx) })
		if !cache.WaitFor(ctx, "", c.src.configMaps.HasSyncedChecker()) {
			return
		}
	}
	result := c.translator.Translate(objects)
	c.setBackends(result.Backends)
	for id, err := range c.cfg.Plane.Apply(result.Config, result.Backends, localPorts(objects.FrontendServices)) {
		c.cfg.Log.Error("opening a port of a Gateway failed; clients cannot connect to it, retrying when an object changes", "port", id.Number, "service", id.Frontend, "err", err)
	}
	c.result.Store(&result)
	c.translated.Send()
}

// objects returns a snapshot of all objects. Its FrontendServices are the Services that the gateway has created.
func (c *Controller) objects() translate.Objects {
	s := c.src
	o := translate.Objects{
		Classes: list[gatewayv1.GatewayClass](s.byKind["gatewayclasses"]), Gateways: list[gatewayv1.Gateway](s.byKind["gateways"]),
		ListenerSets: list[gatewayv1.ListenerSet](s.byKind["listenersets"]), HTTPRoutes: list[gatewayv1.HTTPRoute](s.byKind["httproutes"]),
		GRPCRoutes: list[gatewayv1.GRPCRoute](s.byKind["grpcroutes"]), TLSRoutes: list[gatewayv1.TLSRoute](s.byKind["tlsroutes"]),
		TCPRoutes: list[gatewayv1.TCPRoute](s.byKind["tcproutes"]), UDPRoutes: list[gatewayv1.UDPRoute](s.byKind["udproutes"]),
		Grants: list[gatewayv1.ReferenceGrant](s.byKind["referencegrants"]), BackendPolicies: list[gatewayv1.BackendTLSPolicy](s.byKind["backendtlspolicies"]),
		IngressClasses: list[networkingv1.IngressClass](s.ingressClasses), Ingresses: list[networkingv1.Ingress](s.ingresses),
		Lookup: c.lookup, FrontendServices: map[string]*corev1.Service{},
	}
	for _, svc := range list[corev1.Service](s.services) {
		if svc.Namespace == c.cfg.Namespace && isFrontend(svc) {
			o.FrontendServices[svc.Name] = svc
		}
	}
	return o
}

// setBackends sets the endpoints of backends that are new, and records which backends need endpoints from now on.
func (c *Controller) setBackends(backends map[model.BackendKey]*model.Backend) {
	byService := make(map[types.NamespacedName][]*model.Backend, len(backends))
	for _, b := range backends {
		name := types.NamespacedName{Namespace: b.Key.Namespace, Name: b.Key.Service}
		byService[name] = append(byService[name], b)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.backends
	c.backends = byService
	for name, now := range byService {
		known := func(b *model.Backend) bool {
			return slices.ContainsFunc(before[name], func(o *model.Backend) bool { return o.Key == b.Key })
		}
		if slices.ContainsFunc(now, func(b *model.Backend) bool { return !known(b) }) {
			c.setEndpoints(name)
		}
	}
}

// endpointsChanged passes the current endpoints of a Service to the data plane after one of its EndpointSlices has
// changed or was deleted. This needs no translation of the other objects.
func (c *Controller) endpointsChanged(obj any) {
	if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = d.Obj
	}
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setEndpoints(types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]})
}

// setEndpoints passes the current endpoints of a Service to all backends of the data plane that refer to it. It does
// nothing if there are none or the Service does not exist. The caller holds c.mu.
func (c *Controller) setEndpoints(name types.NamespacedName) {
	backends := c.backends[name]
	if len(backends) == 0 {
		return
	}
	svc := c.lookup.Service(name.Namespace, name.Name)
	if svc == nil {
		return
	}
	objects, err := c.src.endpointSlices.GetIndexer().ByIndex(byService, name.String())
	if err != nil {
		return // the index exists
	}
	for _, b := range backends {
		c.cfg.Plane.SetEndpoints(b, endpointsOf(svc, b.Key, objects))
	}
}

// endpointsOf returns the endpoints of the port of a Service that key identifies: those that are ready, or, if none is, those that still serve
// while they terminate. objects are the EndpointSlices of the Service.
func endpointsOf(svc *corev1.Service, key model.BackendKey, objects []any) []model.Endpoint {
	name, found := "", false
	for _, p := range svc.Spec.Ports {
		if p.Port == key.Port && (p.Protocol == corev1.ProtocolUDP) == key.UDP {
			name, found = p.Name, true
			break
		}
	}
	if !found {
		return nil
	}
	var ready, serving []model.Endpoint
	seen := map[string]bool{}
	for _, obj := range objects {
		slice := obj.(*discoveryv1.EndpointSlice)
		if slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, p := range slice.Ports {
			if ptr.Deref(p.Name, "") != name || p.Port == nil {
				continue
			}
			for _, e := range slice.Endpoints {
				if len(e.Addresses) == 0 {
					continue
				}
				address := net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port)))
				switch {
				case seen[address]:
				case ptr.Deref(e.Conditions.Ready, true):
					ready = append(ready, model.Endpoint{Address: address})
					seen[address] = true
				case ptr.Deref(e.Conditions.Serving, false):
					serving = append(serving, model.Endpoint{Address: address})
					seen[address] = true
				}
			}
		}
	}
	if len(ready) == 0 {
		return serving
	}
	return ready
}
