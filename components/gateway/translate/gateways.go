package translate

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
)

// gateway is a Gateway of one of this controller's classes, with its listeners and its problem, if it has one.
type gateway struct {
	*gatewayv1.Gateway
	frontend string
	service  corev1.ServiceType
	// problem is why the whole Gateway is not accepted, and unresolved why its client certificate is invalid.
	problem, unresolved *problem
	// client is the certificate for connections to backends with TLS, or nil. clientVersion identifies it.
	client        *tls.Certificate
	clientVersion string
	// addresses are those that the Gateway requests. It gets any if there are none.
	addresses []string
	// listeners are those of the Gateway, then those of its ListenerSets from the oldest to the newest.
	listeners []*listener
	sets      []*listenerSet
}

// listenerSet is a ListenerSet whose parent is a Gateway of this controller.
type listenerSet struct {
	*gatewayv1.ListenerSet
	gateway   *gateway
	problem   *problem // why the Gateway does not accept it
	listeners []*listener
}

// frontendOf returns the name and type of the Service of a Gateway: that which Gateways share, or its own if the
// annotation of its GatewayClass specifies that.
func (t *translator) frontendOf(gw *gatewayv1.Gateway) (string, corev1.ServiceType) {
	kind := corev1.ServiceTypeLoadBalancer
	switch t.classes[string(gw.Spec.GatewayClassName)].Annotations[ServiceAnnotation] {
	case ServiceClusterIP:
		kind = corev1.ServiceTypeClusterIP
	case ServiceLoadBalancer:
	default:
		return SharedFrontend, kind
	}
	// The names of namespace and Gateway may be longer together than the name of a Service may be.
	sum := sha256.Sum256([]byte(gw.Namespace + "/" + gw.Name))
	return "gateway-" + hex.EncodeToString(sum[:8]), kind
}

// collectGateways collects the Gateways of this controller's classes, from the oldest to the newest, with their
// listeners. It omits Gateways that are being deleted. Fields that are not supported are problems of the Gateway.
func (t *translator) collectGateways() {
	for _, obj := range sortedByAge(t.Gateways) {
		if t.classes[string(obj.Spec.GatewayClassName)] == nil || obj.DeletionTimestamp != nil {
			continue
		}
		gw := &gateway{Gateway: obj}
		gw.frontend, gw.service = t.frontendOf(obj)
		gw.requestAddresses()
		t.resolveClientCertificate(gw)
		if infra := obj.Spec.Infrastructure; infra != nil && infra.ParametersRef != nil {
			gw.problem = &problem{string(gatewayv1.GatewayReasonInvalidParameters), "parametersRef is not supported"}
		}
		for i := range obj.Spec.Listeners {
			gw.listeners = append(gw.listeners, t.newListener(gw, nil, &obj.Spec.Listeners[i]))
		}
		t.gateways[nameOf(obj)] = gw
		t.ordered = append(t.ordered, gw)
	}
}

// collectListenerSets collects the ListenerSets of the Gateways, and adds their listeners to the Gateways that allow
// them. A ListenerSet that is not allowed has a problem, which its status reports.
func (t *translator) collectListenerSets() {
	for _, obj := range sortedByAge(t.ListenerSets) {
		ref := obj.Spec.ParentRef
		if !isKind(ref.Group, ref.Kind, gatewayv1.GroupName, "Gateway") || obj.DeletionTimestamp != nil {
			continue
		}
		gw := t.gateways[types.NamespacedName{Namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(obj.Namespace))), Name: string(ref.Name)}]
		if gw == nil {
			continue // its parent is not a Gateway of this controller
		}
		set := &listenerSet{ListenerSet: obj, gateway: gw}
		t.sets[nameOf(obj)] = set
		gw.sets = append(gw.sets, set)
		switch {
		case !t.allowsListenerSet(gw, obj):
			set.problem = &problem{string(gatewayv1.ListenerSetReasonNotAllowed), "spec.allowedListeners of the Gateway does not allow ListenerSets of this namespace"}
		case gw.problem != nil:
			set.problem = &problem{string(gatewayv1.ListenerSetReasonParentNotAccepted), "the Gateway is not accepted: " + gw.problem.message}
		}
		for i := range obj.Spec.Listeners {
			spec := gatewayv1.Listener(obj.Spec.Listeners[i])
			l := t.newListener(gw, set, &spec)
			set.listeners = append(set.listeners, l)
			if set.problem == nil {
				gw.listeners = append(gw.listeners, l)
			}
		}
	}
}

// allowsListenerSet reports whether a Gateway allows the ListenerSet. By default it allows none.
func (t *translator) allowsListenerSet(gw *gateway, set *gatewayv1.ListenerSet) bool {
	allowed := gw.Spec.AllowedListeners
	if allowed == nil || allowed.Namespaces == nil {
		return false
	}
	return t.selectsNamespace(ptr.Deref(allowed.Namespaces.From, gatewayv1.NamespacesFromNone), allowed.Namespaces.Selector, gw.Namespace, set.Namespace)
}

// selectsNamespace reports whether a rule of an object in the namespace own selects the namespace other. An invalid
// selector selects none.
func (t *translator) selectsNamespace(from gatewayv1.FromNamespaces, selector *metav1.LabelSelector, own, other string) bool {
	switch from {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return own == other
	case gatewayv1.NamespacesFromSelector:
		s, err := metav1.LabelSelectorAsSelector(selector)
		ns := t.Lookup.Namespace(other)
		return err == nil && ns != nil && s.Matches(labels.Set(ns.Labels))
	}
	return false
}

// frontends returns the Services that the gateway needs, with the ports of all listeners that are served. It omits
// the Service of a Gateway without such a listener.
func (t *translator) frontends() []Frontend {
	byName := map[string]*Frontend{}
	for _, gw := range t.ordered {
		f := &Frontend{Name: gw.frontend, Type: gw.service}
		if gw.frontend != SharedFrontend {
			f.Gateway, f.Addresses = nameOf(gw), gw.addresses
			if infra := gw.Spec.Infrastructure; infra != nil {
				f.Labels, f.Annotations = convertMap(infra.Labels), convertMap(infra.Annotations)
			}
		}
		byName[gw.frontend] = f
	}
	for id, p := range t.ports {
		if !slices.ContainsFunc(p.listeners, func(l *listener) bool { return l.out != nil }) {
			continue
		}
		f := byName[id.Frontend]
		if f == nil {
			f = &Frontend{Name: id.Frontend, Type: corev1.ServiceTypeLoadBalancer}
			byName[id.Frontend] = f
		}
		f.Ports = append(f.Ports, id)
	}
	var out []Frontend
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		f := byName[name]
		if len(f.Ports) == 0 {
			continue // a Service needs a port
		}
		slices.SortFunc(f.Ports, func(a, b model.PortID) int {
			if a.Number == b.Number && a.UDP != b.UDP {
				if b.UDP {
					return -1
				}
				return 1
			}
			return cmp.Compare(a.Number, b.Number)
		})
		out = append(out, *f)
	}
	return out
}

// convertMap converts the types of the Gateway API for labels and annotations to strings.
func convertMap[K, V ~string](m map[K]V) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[string(k)] = string(v)
	}
	return out
}

// addressesOf returns the addresses at which clients reach a frontend: those that a load balancer has assigned, or the
// cluster IPs of a Service of type ClusterIP.
func (t *translator) addressesOf(frontend string) []gatewayv1.GatewayStatusAddress {
	svc := t.FrontendServices[frontend]
	if svc == nil {
		return nil
	}
	var out []gatewayv1.GatewayStatusAddress
	if svc.Spec.Type == corev1.ServiceTypeClusterIP {
		for _, ip := range svc.Spec.ClusterIPs {
			out = append(out, gatewayv1.GatewayStatusAddress{Type: ptr.To(gatewayv1.IPAddressType), Value: ip})
		}
		return out
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			out = append(out, gatewayv1.GatewayStatusAddress{Type: ptr.To(gatewayv1.IPAddressType), Value: in.IP})
		} else if in.Hostname != "" {
			out = append(out, gatewayv1.GatewayStatusAddress{Type: ptr.To(gatewayv1.HostnameAddressType), Value: in.Hostname})
		}
	}
	return out
}

// unassigned returns why a frontend has no addresses.
func (t *translator) unassigned(frontend string) string {
	svc := t.FrontendServices[frontend]
	if svc == nil {
		return "the Service of the gateway does not exist yet"
	}
	for _, c := range svc.Status.Conditions {
		if c.Type == corev1.LoadBalancerPortsError && c.Status == metav1.ConditionTrue {
			return "the Service " + svc.Namespace + "/" + svc.Name + " has no address: " + c.Message
		}
	}
	return "no load balancer has assigned an address to the Service " + svc.Namespace + "/" + svc.Name + " yet"
}

// serves reports whether the Service of a frontend has the port, so that clients can connect.
func (t *translator) serves(id model.PortID) bool {
	svc := t.FrontendServices[id.Frontend]
	return svc != nil && slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Port == id.Number && (p.Protocol == corev1.ProtocolUDP) == id.UDP
	})
}
