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
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/store"
)

// ServiceReconcilerConfig is the configuration of a ServiceReconciler, which maintains the Service
// default/kubernetes.
type ServiceReconcilerConfig struct {
	// Registry contains the resources services, endpoints and endpointslices. The hooks of services
	// allocate the Service's IP and node port.
	Registry *registry.Registry
	// ServiceIP is the cluster IP of the Service: the first one of the default Service range.
	ServiceIP netip.Addr
	// Advertise is the address at which pods reach this API server.
	Advertise netip.AddrPort
	// Etcd contains, below Prefix, the keys with which the API servers of the cluster announce
	// themselves. All announced servers are endpoints. If it is nil, this server is the only
	// endpoint.
	Etcd   *clientv3.Client
	Prefix string
	// NoEndpoints disables the management of Endpoints and EndpointSlice.
	NoEndpoints bool
	// NodePort is the node port that the Service gets when it is created. Zero means none.
	NodePort int32
	// Log receives errors. Nil means slog's default.
	Log *slog.Logger
}

// ServiceReconciler maintains the Service "kubernetes" in the namespace "default", through which pods reach the API,
// with its Endpoints and EndpointSlice.
type ServiceReconciler struct {
	cfg   ServiceReconcilerConfig
	log   *slog.Logger
	ready chan struct{}

	services, endpoints, slices *registry.Resource

	mu             sync.Mutex // guards servers
	servers        []netip.Addr
	serversChanged chan struct{} // signals that servers has changed, capacity 1
}

// kubernetes is the name of the Service, its Endpoints and its EndpointSlice.
const kubernetes = "kubernetes"

// NewServiceReconciler validates cfg and returns a ServiceReconciler. It returns an error if one of
// the resources is not served.
func NewServiceReconciler(cfg ServiceReconcilerConfig) (*ServiceReconciler, error) {
	if !cfg.ServiceIP.IsValid() || !cfg.Advertise.IsValid() {
		return nil, fmt.Errorf("Service kubernetes: invalid address: %s, %s", cfg.ServiceIP, cfg.Advertise)
	}
	k := &ServiceReconciler{cfg: cfg, log: cfg.Log, ready: make(chan struct{}), serversChanged: make(chan struct{}, 1), servers: []netip.Addr{cfg.Advertise.Addr()}}
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
			return nil, fmt.Errorf("Service kubernetes: %s is not served", need.gvr)
		}
	}
	return k, nil
}

// Ready returns a channel that is closed when Run has written the Service and its endpoints for the first time.
func (k *ServiceReconciler) Ready() <-chan struct{} { return k.ready }

// Run writes the objects if they are missing or wrong, first at the start and then after every
// change of the objects or of the running API servers, until ctx is canceled. It retries every
// second after errors.
func (k *ServiceReconciler) Run(ctx context.Context) error {
	started := false
	if k.cfg.Etcd != nil {
		var following sync.WaitGroup
		defer following.Wait()
		known := make(chan struct{})
		s := &serverTracker{client: k.cfg.Etcd, prefix: path.Join(k.cfg.Prefix, "masterleases"), self: k.cfg.Advertise.Addr(), log: k.log}
		var once sync.Once
		s.changed = func(addrs []netip.Addr) {
			k.setServers(addrs)
			once.Do(func() { close(known) })
		}
		following.Go(func() { s.Run(ctx) })
		select {
		case <-known:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		err := k.reconcile(ctx, func() {
			if !started {
				started = true
				close(k.ready)
			}
		})
		if ctx.Err() != nil {
			break
		}
		k.log.Warn("updating Service default/kubernetes and its endpoints failed; pods may not reach the API server, retrying in a second", "err", err)
		lifecycle.Pause(ctx, retryDelay)
	}
	return nil
}

// setServers sets the addresses of the running API servers, and triggers a reconciliation if they
// have changed.
func (k *ServiceReconciler) setServers(addrs []netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.Equal(k.servers, addrs) {
		return
	}
	k.servers = addrs
	select {
	case k.serversChanged <- struct{}{}:
	default:
	}
}

// addresses returns the addresses of the running API servers, of this one alone without Config.Etcd. The caller must
// not modify them.
func (k *ServiceReconciler) addresses() []netip.Addr {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.servers
}

// reconcile watches the three objects. It writes them and calls done, and repeats both whenever one of the objects or
// the running servers change. It returns the first error, or that of ctx when ctx is canceled.
func (k *ServiceReconciler) reconcile(ctx context.Context, done func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed := make(chan error, 3)
	for _, res := range []*registry.Resource{k.services, k.endpoints, k.slices} {
		w, err := res.Collection.Watch(ctx, store.WatchOptions{Key: metav1.NamespaceDefault + "/" + kubernetes})
		if err != nil {
			return err
		}
		defer w.Close()
		go w.Notify(ctx, changed)
	}
	for {
		if err := k.reconcileOnce(ctx); err != nil {
			return err
		}
		done()
		select {
		case err := <-changed:
			if err != nil {
				return err
			}
		case <-k.serversChanged:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reconcileOnce writes each of Service, Endpoints and EndpointSlice if it is missing or wrong. With NoEndpoints it
// only writes the Service.
func (k *ServiceReconciler) reconcileOnce(ctx context.Context) error {
	if err := k.ensure(ctx, k.services, k.service); err != nil || k.cfg.NoEndpoints {
		return err
	}
	if err := k.ensure(ctx, k.endpoints, k.endpointsObject); err != nil {
		return err
	}
	return k.ensure(ctx, k.slices, k.slice)
}

// ensure calls make on a copy of the stored object, or on an empty object if there is none, and writes the result if
// it differs. It tries again after conflicts with other writers. If the stored object cannot be decoded, it logs an
// error and returns nil.
func (k *ServiceReconciler) ensure(ctx context.Context, res *registry.Resource, make func(obj api.Object)) error {
	key := res.Key(metav1.NamespaceDefault, kubernetes)
	for {
		obj := res.New()
		var old api.Object
		e, err := res.Collection.Get(ctx, key, -1)
		switch {
		case err == nil:
			stored, err := e.Object()
			if errors.Is(err, store.ErrCorrupt) {
				// It is written again after an operator has deleted it.
				k.log.ErrorContext(ctx, "object of the Service default/kubernetes in etcd cannot be decoded and is not updated, so pods may not reach the API server: delete it with the delete option ignoreStoreReadErrorWithClusterBreakingPotential, it is then written again", "resource", res.Plural, "key", key, "err", err)
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

// label sets the label key of obj to value.
func label(obj metav1.Object, key, value string) {
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	obj.SetLabels(labels)
}

// service sets the desired labels and spec of the Service. In an existing Service it changes only the port and the
// selector, and keeps the type, node port and cluster IP.
func (k *ServiceReconciler) service(obj api.Object) {
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
		// The port may have been made reachable from outside. Keep that.
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

// endpointsObject sets the desired labels and addresses of the Endpoints: those of all running API
// servers.
func (k *ServiceReconciler) endpointsObject(obj api.Object) {
	ep := obj.(*corev1.Endpoints)
	// The slice is written here, so it must not be mirrored from the Endpoints.
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

// slice sets the desired labels and endpoints of the EndpointSlice: the addresses of all running
// API servers.
func (k *ServiceReconciler) slice(obj api.Object) {
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
