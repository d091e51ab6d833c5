package controller

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/internal/client"
)

// byService is the index of EndpointSlices by namespace and name of their Service.
const byService = "service"

// newGatewayClient returns a REST client for the group gateway.networking.k8s.io.
func newGatewayClient(config *rest.Config) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := gatewayv1.Install(scheme); err != nil {
		return nil, fmt.Errorf("registering the types of the Gateway API: %w", err)
	}
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion = "/apis", &gatewayv1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	out, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("creating client of the Gateway API: %w", err)
	}
	return out, nil
}

// sources are the informers of all objects that the gateway depends on.
type sources struct {
	gateway *rest.RESTClient
	// byKind are the informers of the Gateway API by resource.
	byKind         map[string]cache.SharedIndexInformer
	services       cache.SharedIndexInformer
	endpointSlices cache.SharedIndexInformer
	namespaces     cache.SharedIndexInformer
	ingresses      cache.SharedIndexInformer
	ingressClasses cache.SharedIndexInformer
	secrets        cache.SharedIndexInformer // of the type kubernetes.io/tls
	configMaps     cache.SharedIndexInformer // started only if an object refers to a ConfigMap
}

// resources are the resources of the Gateway API with an example of their type.
func resources() map[string]runtime.Object {
	return map[string]runtime.Object{
		"gatewayclasses": &gatewayv1.GatewayClass{}, "gateways": &gatewayv1.Gateway{}, "listenersets": &gatewayv1.ListenerSet{},
		"httproutes": &gatewayv1.HTTPRoute{}, "grpcroutes": &gatewayv1.GRPCRoute{}, "tlsroutes": &gatewayv1.TLSRoute{},
		"tcproutes": &gatewayv1.TCPRoute{}, "udproutes": &gatewayv1.UDPRoute{},
		"referencegrants": &gatewayv1.ReferenceGrant{}, "backendtlspolicies": &gatewayv1.BackendTLSPolicy{},
	}
}

// newSources creates the informers. It strips fields that the gateway does not need, because this process does not share
// the objects with others.
func newSources(clients *client.Clients) (*sources, error) {
	gateway, err := newGatewayClient(clients.REST)
	if err != nil {
		return nil, err
	}
	core, factory := clients.Kube.CoreV1(), clients.Informers
	s := &sources{
		gateway: gateway, byKind: map[string]cache.SharedIndexInformer{},
		services: factory.Core().V1().Services().Informer(), endpointSlices: factory.Discovery().V1().EndpointSlices().Informer(),
		namespaces: factory.Core().V1().Namespaces().Informer(), ingresses: factory.Networking().V1().Ingresses().Informer(),
		ingressClasses: factory.Networking().V1().IngressClasses().Informer(),
		secrets:        client.NewInformer(clients.Kube, &corev1.Secret{}, core.Secrets(""), fields.OneTermEqualSelector("type", string(corev1.SecretTypeTLS))),
		configMaps:     client.NewInformer(clients.Kube, &corev1.ConfigMap{}, core.ConfigMaps(""), fields.Everything()),
	}
	for resource, example := range resources() {
		s.byKind[resource] = cache.NewSharedIndexInformer(cache.NewListWatchFromClient(gateway, resource, metav1.NamespaceAll, fields.Everything()), example, 0, cache.Indexers{})
	}
	for _, informer := range append(s.all(), s.configMaps) {
		if err := informer.SetTransform(trim); err != nil {
			return nil, fmt.Errorf("configuring informer: %w", err)
		}
	}
	err = s.endpointSlices.AddIndexers(cache.Indexers{byService: func(obj any) ([]string, error) {
		slice := obj.(*discoveryv1.EndpointSlice)
		return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
	}})
	if err != nil {
		return nil, fmt.Errorf("configuring informer: %w", err)
	}
	return s, nil
}

// own returns the informers that the controller runs itself, because no factory does.
func (s *sources) own() []cache.SharedIndexInformer {
	out := []cache.SharedIndexInformer{s.secrets}
	for _, informer := range s.byKind {
		out = append(out, informer)
	}
	return out
}

// all returns all informers except for that of ConfigMaps.
func (s *sources) all() []cache.SharedIndexInformer {
	return append(s.own(), s.services, s.endpointSlices, s.namespaces, s.ingresses, s.ingressClasses)
}

// trim removes managed fields from an object before an informer stores it, and from ConfigMaps, Secrets and
// EndpointSlices their annotations. Of the data of a ConfigMap it keeps only ca.crt. It never returns an error.
func trim(obj any) (any, error) {
	if object, err := meta.Accessor(obj); err == nil {
		object.SetManagedFields(nil)
	}
	switch o := obj.(type) {
	case *corev1.ConfigMap:
		// Only CA certificates are used.
		ca, ok := o.Data["ca.crt"]
		if o.Data, o.BinaryData = nil, nil; ok {
			o.Data = map[string]string{"ca.crt": ca}
		}
		o.Annotations = nil
	case *corev1.Secret:
		o.Annotations = nil
	case *discoveryv1.EndpointSlice:
		o.Annotations = nil
	}
	return obj, nil
}

// matters reports whether a change of an object can change what is served or written. A change of the status alone does
// not matter, except of Services that the gateway has created.
func matters(old, cur any) bool {
	switch o := old.(type) {
	case *corev1.Service:
		c := cur.(*corev1.Service)
		return o.Spec.Type != c.Spec.Type || !equality.Semantic.DeepEqual(o.Spec.Ports, c.Spec.Ports) || isFrontend(c)
	case *corev1.Namespace:
		return !equality.Semantic.DeepEqual(o.Labels, cur.(*corev1.Namespace).Labels)
	case *corev1.ConfigMap:
		return o.Data["ca.crt"] != cur.(*corev1.ConfigMap).Data["ca.crt"]
	}
	o, errOld := meta.Accessor(old)
	c, errCur := meta.Accessor(cur)
	if errOld != nil || errCur != nil || c.GetGeneration() == 0 {
		return true // the kind has no generation, which would change with spec
	}
	return o.GetUID() != c.GetUID() || o.GetGeneration() != c.GetGeneration() || (o.GetDeletionTimestamp() == nil) != (c.GetDeletionTimestamp() == nil) ||
		!equality.Semantic.DeepEqual(o.GetAnnotations(), c.GetAnnotations())
}

// list returns the objects in an informer that have the type T.
func list[T any](informer cache.SharedIndexInformer) []*T {
	objects := informer.GetStore().List()
	out := make([]*T, 0, len(objects))
	for _, obj := range objects {
		if o, ok := obj.(*T); ok {
			out = append(out, o)
		}
	}
	return out
}

// get returns an object in an informer, or nil if there is none of the type T. namespace is empty for kinds without
// namespaces.
func get[T any](informer cache.SharedIndexInformer, namespace, name string) *T {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	obj, ok, err := informer.GetStore().GetByKey(key)
	if o, is := obj.(*T); ok && err == nil && is {
		return o
	}
	return nil
}

// refersToConfigMaps reports whether a Gateway or BackendTLSPolicy refers to CA certificates.
func refersToConfigMaps(gateways []*gatewayv1.Gateway, policies []*gatewayv1.BackendTLSPolicy) bool {
	return slices.ContainsFunc(gateways, func(g *gatewayv1.Gateway) bool { return g.Spec.TLS != nil && g.Spec.TLS.Frontend != nil }) ||
		slices.ContainsFunc(policies, func(p *gatewayv1.BackendTLSPolicy) bool { return len(p.Spec.Validation.CACertificateRefs) > 0 })
}
