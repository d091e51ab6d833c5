package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/lifecycle"
	"hyperkube/internal/store"
)

// KeeperConfig of a Keeper.
type KeeperConfig struct {
	// Registry has services, endpoints and endpointslices; the hooks of
	// services give the service its address.
	Registry *registry.Registry
	// ServiceIP is the address of the Service: the first of the default
	// range.
	ServiceIP netip.Addr
	// Advertise is where this API server is reached by pods.
	Advertise netip.AddrPort
	// Etcd is where other API servers of the cluster are known, below Prefix;
	// nil: there are no others, and the only address is this one's.
	Etcd   *clientv3.Client
	Prefix string
	// NoEndpoints keeps the Service alone.
	NoEndpoints bool
	// NodePort of the Service when it is made; zero: none.
	NodePort int32
	// Log receives what goes wrong; nil: slog's default.
	Log *slog.Logger
}

// Keeper keeps the Service "kubernetes" in the namespace "default", by which
// pods reach the API, and its Endpoints and EndpointSlice.
type Keeper struct {
	cfg   KeeperConfig
	log   *slog.Logger
	ready chan struct{}

	services, endpoints, slices *registry.Resource

	mu      sync.Mutex // guards servers
	servers []netip.Addr
	moved   chan struct{} // has one element when servers changed
}

// kubernetes is the name of the Service, of its Endpoints and of its slice.
const kubernetes = "kubernetes"

// NewKeeper validates cfg.
func NewKeeper(cfg KeeperConfig) (*Keeper, error) {
	if !cfg.ServiceIP.IsValid() || !cfg.Advertise.IsValid() {
		return nil, fmt.Errorf("the Service kubernetes: no address: %s, %s", cfg.ServiceIP, cfg.Advertise)
	}
	k := &Keeper{cfg: cfg, log: cfg.Log, ready: make(chan struct{}), moved: make(chan struct{}, 1), servers: []netip.Addr{cfg.Advertise.Addr()}}
	if k.log == nil {
		k.log = slog.Default()
	}
	for _, need := range []struct {
		gvr schema.GroupVersionResource
		res **registry.Resource
	}{
		{corev1.SchemeGroupVersion.WithResource("services"), &k.services},
		{corev1.SchemeGroupVersion.WithResource("endpoints"), &k.endpoints},
		{discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), &k.slices},
	} {
		*need.res = cfg.Registry.Lookup(need.gvr)
		if *need.res == nil {
			return nil, fmt.Errorf("the Service kubernetes: %s is not served", need.gvr)
		}
	}
	return k, nil
}

// Ready is closed once all three have been written for the first time.
func (k *Keeper) Ready() <-chan struct{} { return k.ready }

// Run writes what is missing or wrong, and again whenever someone has changed
// it, until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	started := false
	if k.cfg.Etcd != nil {
		var following sync.WaitGroup
		defer following.Wait()
		known := make(chan struct{})
		s := &servers{client: k.cfg.Etcd, prefix: path.Join(k.cfg.Prefix, "masterleases"), self: k.cfg.Advertise.Addr(), log: k.log}
		var once sync.Once
		s.found = func(addrs []netip.Addr) {
			k.serve(addrs)
			once.Do(func() { close(known) })
		}
		following.Go(func() { s.Run(ctx) })
		select {
		case <-known:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		err := k.keep(ctx, func() {
			if !started {
				started = true
				close(k.ready)
			}
		})
		if ctx.Err() != nil {
			break
		}
		k.log.Error("Could not keep the Service kubernetes", "error", err)
		lifecycle.Pause(ctx, pause)
	}
	return nil
}

// serve takes note of the servers that there are.
func (k *Keeper) serve(addrs []netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.Equal(k.servers, addrs) {
		return
	}
	k.servers = addrs
	select {
	case k.moved <- struct{}{}:
	default:
	}
}

func (k *Keeper) addresses() []netip.Addr {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.servers
}

// keep writes what is missing, calls done and does so again whenever one of
// the three has changed.
func (k *Keeper) keep(ctx context.Context, done func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed := make(chan error, 3)
	for _, res := range []*registry.Resource{k.services, k.endpoints, k.slices} {
		w, err := res.Collection.Watch(ctx, store.WatchOptions{Key: metav1.NamespaceDefault + "/" + kubernetes})
		if err != nil {
			return err
		}
		defer w.Close()
		go w.Tell(ctx, changed)
	}
	for {
		if err := k.write(ctx); err != nil {
			return err
		}
		done()
		select {
		case err := <-changed:
			if err != nil {
				return err
			}
		case <-k.moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// write makes all three what they shall be.
func (k *Keeper) write(ctx context.Context) error {
	if err := k.ensure(ctx, k.services, k.service); err != nil || k.cfg.NoEndpoints {
		return err
	}
	if err := k.ensure(ctx, k.endpoints, k.endpointsObject); err != nil {
		return err
	}
	return k.ensure(ctx, k.slices, k.slice)
}

// ensure writes what make makes of what is there, unless that is the same. The
// object that make gets is its own; it is empty when there is none yet.
func (k *Keeper) ensure(ctx context.Context, res *registry.Resource, make func(obj api.Object)) error {
	key := res.Key(metav1.NamespaceDefault, kubernetes)
	for {
		obj := res.New()
		var old api.Object
		e, err := res.Collection.Get(ctx, key, -1)
		switch {
		case err == nil:
			stored, err := e.Object()
			if errors.Is(err, store.ErrCorrupt) {
				// It is written when somebody has deleted it.
				k.log.ErrorContext(ctx, "an object by which pods reach the API cannot be read", "resource", res.Plural, "error", err)
				return nil
			}
			if err != nil {
				return err
			}
			old = stored.(api.Object)
			obj = old.DeepCopyObject().(api.Object)
		case !errors.Is(err, store.ErrNotFound):
			return err
		}
		obj.SetNamespace(metav1.NamespaceDefault)
		obj.SetName(kubernetes)
		make(obj)
		if old == nil {
			obj = prepare(ctx, res.Resource, obj)
		} else {
			res.Default(obj)
			if apiequality.Semantic.DeepEqual(obj, old) {
				return nil
			}
			res.Update.Prepare(ctx, obj, old)
		}
		obj.SetResourceVersion("")
		var ops []store.Op
		for _, hook := range res.Hooks() {
			more, err := hook(ctx, obj, old)
			if err != nil {
				return err
			}
			ops = append(ops, more...)
		}
		if old == nil {
			ops = append(ops, res.Collection.Create(key, obj, res.TTL))
		} else {
			ops = append(ops, res.Collection.Update(e, obj, res.TTL))
		}
		_, _, err = res.Collection.Store().Commit(ctx, ops...)
		if err == nil {
			return nil
		}
		if _, ok := errors.AsType[*store.ConflictError](err); !ok {
			return err
		}
	}
}

func label(obj metav1.Object, key, value string) {
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	obj.SetLabels(labels)
}

func (k *Keeper) service(obj api.Object) {
	svc := obj.(*corev1.Service)
	label(svc, "provider", "kubernetes")
	label(svc, "component", "apiserver")
	port := corev1.ServicePort{
		Name:       "https",
		Protocol:   corev1.ProtocolTCP,
		Port:       443,
		TargetPort: intstr.FromInt32(int32(k.cfg.Advertise.Port())),
	}
	if len(svc.Spec.Ports) == 1 && svc.Spec.Type != corev1.ServiceTypeExternalName {
		// Someone may have made it reachable from outside, which stays.
		port.NodePort = svc.Spec.Ports[0].NodePort
	}
	svc.Spec.Ports = []corev1.ServicePort{port}
	svc.Spec.Selector = nil
	if svc.UID != "" {
		return
	}
	svc.Spec.Type = corev1.ServiceTypeClusterIP
	if k.cfg.NodePort != 0 {
		svc.Spec.Type = corev1.ServiceTypeNodePort
		svc.Spec.Ports[0].NodePort = k.cfg.NodePort
	}
	svc.Spec.ClusterIP = k.cfg.ServiceIP.String()
	policy := corev1.IPFamilyPolicySingleStack
	svc.Spec.IPFamilyPolicy = &policy
	svc.Spec.SessionAffinity = corev1.ServiceAffinityNone
}

func (k *Keeper) endpointsObject(obj api.Object) {
	ep := obj.(*corev1.Endpoints)
	// The slice is kept here too, not mirrored.
	label(ep, discoveryv1.LabelSkipMirror, "true")
	var addresses []corev1.EndpointAddress
	for _, addr := range k.addresses() {
		addresses = append(addresses, corev1.EndpointAddress{IP: addr.String()})
	}
	ep.Subsets = []corev1.EndpointSubset{{
		Addresses: addresses,
		Ports:     []corev1.EndpointPort{{Name: "https", Port: int32(k.cfg.Advertise.Port()), Protocol: corev1.ProtocolTCP}},
	}}
}

func (k *Keeper) slice(obj api.Object) {
	s := obj.(*discoveryv1.EndpointSlice)
	label(s, discoveryv1.LabelServiceName, kubernetes)
	s.AddressType = discoveryv1.AddressTypeIPv4
	if k.cfg.Advertise.Addr().Is6() {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	ready := true
	s.Endpoints = nil
	for _, addr := range k.addresses() {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	name, port, protocol := "https", int32(k.cfg.Advertise.Port()), corev1.ProtocolTCP
	s.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}
}
