// Package translate turns objects of the Gateway API and Ingresses into the model that the data plane serves, and into
// the status of each object. It consists of pure functions: the same objects always have the same result.
//
// An object that is invalid affects only itself. It gets the conditions and reasons that the Gateway API defines, and
// what is valid of it is served.
package translate

import (
	"cmp"
	"crypto/tls"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
)

const (
	// ControllerName is the controller of GatewayClasses and IngressClasses that this gateway implements.
	ControllerName = "hyperkube.io/gateway"
	// ServiceAnnotation is an annotation of a GatewayClass. Its value is one of the Service… constants.
	ServiceAnnotation = "hyperkube.io/gateway-service"
	// SharedFrontend is the name of the Service that Ingresses, and the Gateways of classes without their own Services, share.
	SharedFrontend = "hyperkube-gateway"
)

// Values of ServiceAnnotation.
const (
	// ServiceShared is the default: all Gateways of the class share the Service SharedFrontend.
	ServiceShared = "Shared"
	// ServiceLoadBalancer gives each Gateway a Service of type LoadBalancer.
	ServiceLoadBalancer = "LoadBalancer"
	// ServiceClusterIP gives each Gateway a Service of type ClusterIP, so that only clients in the cluster reach it.
	ServiceClusterIP = "ClusterIP"
)

// Objects are the objects to translate. They are not modified.
type Objects struct {
	Classes          []*gatewayv1.GatewayClass
	Gateways         []*gatewayv1.Gateway
	ListenerSets     []*gatewayv1.ListenerSet
	HTTPRoutes       []*gatewayv1.HTTPRoute
	GRPCRoutes       []*gatewayv1.GRPCRoute
	TLSRoutes        []*gatewayv1.TLSRoute
	TCPRoutes        []*gatewayv1.TCPRoute
	UDPRoutes        []*gatewayv1.UDPRoute
	Grants           []*gatewayv1.ReferenceGrant
	BackendPolicies  []*gatewayv1.BackendTLSPolicy
	IngressClasses   []*networkingv1.IngressClass
	Ingresses        []*networkingv1.Ingress
	Lookup           Lookup
	FrontendServices map[string]*corev1.Service // by frontend, those that exist
}

// Lookup returns objects that others refer to. Each function returns nil if the object does not exist.
type Lookup interface {
	Service(namespace, name string) *corev1.Service
	ConfigMap(namespace, name string) *corev1.ConfigMap
	Namespace(name string) *corev1.Namespace
	// Certificate returns the certificate in a Secret of type kubernetes.io/tls. The error of an invalid Secret is for
	// the status of the object that refers to it. Without an error, nil means that the Secret does not exist.
	Certificate(namespace, name string) (*tls.Certificate, error)
}

// Frontend is a Service that must exist so that clients reach the gateway.
type Frontend struct {
	Name string
	// Type is LoadBalancer or ClusterIP.
	Type corev1.ServiceType
	// Gateway is the Gateway that the Service belongs to. It is empty for SharedFrontend.
	Gateway types.NamespacedName
	// Addresses are those that the Service must have. It gets any if there are none.
	Addresses []string
	// Labels and Annotations are those of the Gateway's infrastructure.
	Labels, Annotations map[string]string
	// Ports are sorted.
	Ports []model.PortID
}

// RouteKey identifies a route of any kind.
type RouteKey struct {
	Kind gatewayv1.Kind
	types.NamespacedName
}

// Status contains the status of all objects that this gateway is responsible for. Conditions have no transition time.
type Status struct {
	Classes      map[string][]metav1.Condition
	Gateways     map[types.NamespacedName]gatewayv1.GatewayStatus
	ListenerSets map[types.NamespacedName]gatewayv1.ListenerSetStatus
	// Routes are the statuses of the routes for those parents that belong to this gateway.
	Routes    map[RouteKey][]gatewayv1.RouteParentStatus
	Policies  map[types.NamespacedName][]gatewayv1.PolicyAncestorStatus
	Ingresses map[types.NamespacedName][]networkingv1.IngressLoadBalancerIngress
	// IngressProblems are messages about invalid parts of Ingresses, which have no conditions.
	IngressProblems map[types.NamespacedName][]string
}

// Result is the result of Translate.
type Result struct {
	Config *model.Config
	// Backends are those that Config refers to.
	Backends map[model.BackendKey]*model.Backend
	// Frontends are sorted by name.
	Frontends []Frontend
	Status    Status
}

// translator is the state of one translation.
//
// Size: a method for each kind of object and for each of its parts.
type translator struct {
	Objects
	kept     *Translator
	grants   grants
	policies *policies
	backends map[model.BackendKey]*model.Backend
	classes  map[string]*gatewayv1.GatewayClass // those of this controller
	gateways map[types.NamespacedName]*gateway
	sets     map[types.NamespacedName]*listenerSet
	// ordered are the gateways from the oldest to the newest.
	ordered []*gateway
	ports   map[model.PortID]*port
	status  Status
}

// Translate translates objects.
func Translate(o Objects) Result { return new(Translator).Translate(o) }

// newTranslator returns the state of a translation. kept contains compiled routes of earlier ones.
func newTranslator(o Objects, kept *Translator) *translator {
	return &translator{
		Objects: o, kept: kept, grants: indexGrants(o.Grants), backends: make(map[model.BackendKey]*model.Backend, kept.backends),
		classes: map[string]*gatewayv1.GatewayClass{}, gateways: map[types.NamespacedName]*gateway{},
		sets: map[types.NamespacedName]*listenerSet{}, ports: map[model.PortID]*port{},
		status: Status{
			Classes: map[string][]metav1.Condition{}, Gateways: map[types.NamespacedName]gatewayv1.GatewayStatus{},
			ListenerSets: map[types.NamespacedName]gatewayv1.ListenerSetStatus{}, Routes: make(map[RouteKey][]gatewayv1.RouteParentStatus, len(o.HTTPRoutes)+len(o.GRPCRoutes)),
			Policies: map[types.NamespacedName][]gatewayv1.PolicyAncestorStatus{}, Ingresses: map[types.NamespacedName][]networkingv1.IngressLoadBalancerIngress{},
			IngressProblems: map[types.NamespacedName][]string{},
		},
	}
}

// translate translates the objects. It must be called once.
func (t *translator) translate() Result {
	t.policies = t.indexPolicies()
	t.collectClasses()
	t.collectGateways()
	t.collectListenerSets()
	for _, gw := range t.ordered {
		for _, l := range gw.listeners {
			t.claim(l)
		}
	}
	t.attachRoutes()
	t.addIngresses()
	t.writeGatewayStatus()
	t.policies.writeStatus(t.status.Policies)
	t.kept.backends = len(t.backends)
	return Result{Config: t.config(), Backends: t.backends, Frontends: t.frontends(), Status: t.status}
}

// collectClasses collects the GatewayClasses of this controller and sets their condition Accepted. It is false, and
// the class is not used, if the class has parameters or an invalid annotation for its Services.
func (t *translator) collectClasses() {
	for _, c := range t.Classes {
		if c.Spec.ControllerName != ControllerName {
			continue
		}
		t.classes[c.Name] = c
		accepted := condition(string(gatewayv1.GatewayClassConditionStatusAccepted), string(gatewayv1.GatewayClassReasonAccepted), "", c.Generation)
		switch c.Annotations[ServiceAnnotation] {
		case "", ServiceShared, ServiceLoadBalancer, ServiceClusterIP:
		default:
			accepted = failed(string(gatewayv1.GatewayClassConditionStatusAccepted), string(gatewayv1.GatewayClassReasonInvalidParameters),
				"the annotation "+ServiceAnnotation+" must be Shared, LoadBalancer or ClusterIP", c.Generation)
			delete(t.classes, c.Name)
		}
		if c.Spec.ParametersRef != nil {
			accepted = failed(string(gatewayv1.GatewayClassConditionStatusAccepted), string(gatewayv1.GatewayClassReasonInvalidParameters), "parametersRef is not supported", c.Generation)
			delete(t.classes, c.Name)
		}
		t.status.Classes[c.Name] = []metav1.Condition{accepted}
	}
}

// config returns the configuration of all usable listeners.
func (t *translator) config() *model.Config {
	c := &model.Config{Ports: map[model.PortID]*model.Port{}}
	for id, p := range t.ports {
		out := &model.Port{}
		for _, l := range p.listeners {
			if l.out != nil {
				out.Listeners = append(out.Listeners, l.out)
			}
		}
		if len(out.Listeners) > 0 {
			c.Ports[id] = out
		}
	}
	return c
}

// byAge orders objects from the oldest to the newest, and objects of the same age by namespace and name. This is the
// precedence of the Gateway API.
func byAge[T metav1.Object](a, b T) int {
	at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	if !at.Equal(&bt) {
		if at.Before(&bt) {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}

// sortedByAge returns a copy of objects in the order of byAge.
func sortedByAge[T metav1.Object](objects []T) []T {
	return slices.SortedFunc(slices.Values(objects), byAge[T])
}

// nameOf returns the namespace and name of an object.
func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// condition returns a condition with the status True.
func condition(kind, reason, message string, generation int64) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: generation}
}

// failed returns a condition with the status False.
func failed(kind, reason, message string, generation int64) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: generation}
}

// problem is why a part of an object is invalid: the reason of the condition and a message. Nil means that it is valid.
type problem struct{ reason, message string }

// resolve returns the condition of type kind: False with the problem, or True with the reason good if there is none.
func resolve(kind, good string, p *problem, generation int64) metav1.Condition {
	if p != nil {
		return failed(kind, p.reason, p.message, generation)
	}
	return condition(kind, good, "", generation)
}
