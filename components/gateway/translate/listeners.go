package translate

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
)

// listener is a listener of a Gateway or of a ListenerSet.
type listener struct {
	gateway *gateway
	set     *listenerSet // nil for a listener of the Gateway itself
	spec    *gatewayv1.Listener
	kind    model.Kind
	port    model.PortID
	// kinds are the kinds of routes that can be attached.
	kinds []gatewayv1.RouteGroupKind
	// invalid, unresolved and conflict are why the listener is not accepted, has unresolved references, and conflicts
	// with an older one.
	invalid, unresolved, conflict *problem
	attached                      int32
	// out is the listener in the result. It is nil if the listener cannot serve connections. Routes are attached anyway.
	out *model.Listener
}

// port are the listeners that share a port, in the order in which they claimed it.
type port struct{ listeners []*listener }

// accepted reports whether routes can be attached.
func (l *listener) accepted() bool { return l.invalid == nil && l.conflict == nil }

// hostname returns the hostname in lower case, or "" if the listener serves all.
func (l *listener) hostname() string {
	return strings.ToLower(string(ptr.Deref(l.spec.Hostname, "")))
}

// namespace returns the namespace of the object that contains the listener.
func (l *listener) namespace() string {
	if l.set != nil {
		return l.set.Namespace
	}
	return l.gateway.Namespace
}

// name returns the name of the listener in messages and in the model.
func (l *listener) name() string {
	if l.set != nil {
		return l.set.Namespace + "/" + l.set.Name + "/" + string(l.spec.Name)
	}
	return l.gateway.Namespace + "/" + l.gateway.Name + "/" + string(l.spec.Name)
}

// newListener validates a listener and resolves its references. set is nil for a listener of the Gateway itself.
func (t *translator) newListener(gw *gateway, set *listenerSet, spec *gatewayv1.Listener) *listener {
	l := &listener{gateway: gw, set: set, spec: spec, port: model.PortID{Frontend: gw.frontend, Number: spec.Port}}
	mode := gatewayv1.TLSModeTerminate
	if spec.TLS != nil {
		mode = ptr.Deref(spec.TLS.Mode, gatewayv1.TLSModeTerminate)
	}
	var supported []gatewayv1.Kind
	switch spec.Protocol {
	case gatewayv1.HTTPProtocolType:
		l.kind, supported = model.HTTP, []gatewayv1.Kind{"HTTPRoute", "GRPCRoute"}
	case gatewayv1.HTTPSProtocolType:
		l.kind, supported = model.HTTPS, []gatewayv1.Kind{"HTTPRoute", "GRPCRoute"}
		if mode != gatewayv1.TLSModeTerminate {
			l.invalid = &problem{string(gatewayv1.ListenerReasonUnsupportedValue), "listeners with the protocol HTTPS must have the TLS mode Terminate"}
		}
	case gatewayv1.TLSProtocolType:
		l.kind, supported = model.TLSTerminate, []gatewayv1.Kind{"TLSRoute"}
		if mode == gatewayv1.TLSModePassthrough {
			l.kind = model.TLSPassthrough
		}
	case gatewayv1.TCPProtocolType:
		l.kind, supported = model.TCP, []gatewayv1.Kind{"TCPRoute"}
	case gatewayv1.UDPProtocolType:
		l.kind, supported, l.port.UDP = model.UDP, []gatewayv1.Kind{"UDPRoute"}, true
	default:
		l.invalid = &problem{string(gatewayv1.ListenerReasonUnsupportedProtocol), "the protocol is not supported"}
	}
	l.selectKinds(supported)
	config := t.serverTLS(l)
	usable := l.invalid == nil && len(l.kinds) > 0 && gw.problem == nil && (set == nil || set.problem == nil)
	if usable && (config != nil || !l.terminatesTLS()) {
		l.out = &model.Listener{Name: l.name(), Kind: l.kind, Hostname: l.hostname(), TLS: config}
	}
	return l
}

// terminatesTLS reports whether the listener needs a certificate.
func (l *listener) terminatesTLS() bool { return l.kind == model.HTTPS || l.kind == model.TLSTerminate }

// selectKinds sets the kinds of routes that can be attached: those of the protocol that allowedRoutes allows, or all
// of the protocol if it lists none. It sets a problem if allowedRoutes lists another kind.
func (l *listener) selectKinds(supported []gatewayv1.Kind) {
	l.kinds = []gatewayv1.RouteGroupKind{}
	group := ptr.To(gatewayv1.Group(gatewayv1.GroupName))
	if l.spec.AllowedRoutes == nil || len(l.spec.AllowedRoutes.Kinds) == 0 {
		for _, kind := range supported {
			l.kinds = append(l.kinds, gatewayv1.RouteGroupKind{Group: group, Kind: kind})
		}
		return
	}
	for _, k := range l.spec.AllowedRoutes.Kinds {
		if ptr.Deref(k.Group, gatewayv1.GroupName) == gatewayv1.GroupName && slices.Contains(supported, k.Kind) {
			l.kinds = append(l.kinds, gatewayv1.RouteGroupKind{Group: group, Kind: k.Kind})
			continue
		}
		l.unresolved = &problem{string(gatewayv1.ListenerReasonInvalidRouteKinds), fmt.Sprintf("routes of the kind %s cannot be attached to a listener with the protocol %s", k.Kind, l.spec.Protocol)}
	}
}

// claim adds the listener to its port, unless a listener that has claimed the port before conflicts with it. A
// listener with a conflict has a problem and is not served.
func (t *translator) claim(l *listener) {
	if l.invalid != nil || l.gateway.problem != nil {
		return
	}
	p := t.ports[l.port]
	if p == nil {
		p = &port{}
		t.ports[l.port] = p
	}
	for _, other := range p.listeners {
		switch {
		case !l.kind.Compatible(other.kind):
			l.conflict = &problem{string(gatewayv1.ListenerReasonProtocolConflict), fmt.Sprintf("listener %s uses port %d with the protocol %s", other.name(), l.port.Number, other.spec.Protocol)}
		case l.hostname() == other.hostname():
			l.conflict = &problem{string(gatewayv1.ListenerReasonHostnameConflict), fmt.Sprintf("listener %s uses port %d with the same hostname", other.name(), l.port.Number)}
		default:
			continue
		}
		l.out = nil
		return
	}
	p.listeners = append(p.listeners, l)
}

// serverTLS returns the TLS configuration of a listener. It returns nil if the listener does not terminate TLS, if no
// certificate is valid, or if the CAs for client certificates are invalid. It sets the problems of the listener.
func (t *translator) serverTLS(l *listener) *model.ServerTLS {
	if !l.terminatesTLS() || l.invalid != nil {
		return nil
	}
	var certificates []*tls.Certificate
	var refs []gatewayv1.SecretObjectReference
	if l.spec.TLS != nil {
		refs = l.spec.TLS.CertificateRefs
	}
	if len(refs) == 0 {
		l.unresolve(&problem{string(gatewayv1.ListenerReasonInvalidCertificateRef), "tls.certificateRefs is empty"})
	}
	from := grantFrom{gatewayv1.GroupName, "Gateway", l.namespace()}
	if l.set != nil {
		from.kind = "ListenerSet"
	}
	for _, ref := range refs {
		certificate, p := t.certificate(from, ref, string(gatewayv1.ListenerReasonInvalidCertificateRef), string(gatewayv1.ListenerReasonRefNotPermitted))
		if p != nil {
			l.unresolve(p)
			continue
		}
		certificates = append(certificates, certificate)
	}
	config := &model.ServerTLS{Certificates: certificates}
	if !t.verifyClients(l, config) || len(certificates) == 0 {
		return nil
	}
	return config
}

// unresolve sets the first problem of the listener's references.
func (l *listener) unresolve(p *problem) {
	if l.unresolved == nil {
		l.unresolved = p
	}
}

// certificate returns the certificate that an object refers to. invalid and notPermitted are the reasons of problems.
func (t *translator) certificate(from grantFrom, ref gatewayv1.SecretObjectReference, invalid, notPermitted string) (*tls.Certificate, *problem) {
	if !isKind(ref.Group, ref.Kind, "", "Secret") {
		return nil, &problem{invalid, "certificates must be Secrets"}
	}
	namespace := string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(from.namespace)))
	if !t.grants.allow(from, grantTo{"", "Secret", namespace}, string(ref.Name)) {
		return nil, &problem{notPermitted, fmt.Sprintf("no ReferenceGrant allows to refer to Secret %s/%s", namespace, ref.Name)}
	}
	certificate, err := t.Lookup.Certificate(namespace, string(ref.Name))
	if err != nil {
		return nil, &problem{invalid, fmt.Sprintf("Secret %s/%s: %v", namespace, ref.Name, err)}
	}
	if certificate == nil {
		return nil, &problem{invalid, fmt.Sprintf("Secret %s/%s of the type kubernetes.io/tls does not exist", namespace, ref.Name)}
	}
	return certificate, nil
}

// validationOf returns the part of spec.tls.frontend that applies to the port of a listener, or nil.
func validationOf(l *listener) *gatewayv1.FrontendTLSValidation {
	if l.gateway.Spec.TLS == nil || l.gateway.Spec.TLS.Frontend == nil {
		return nil
	}
	frontend := l.gateway.Spec.TLS.Frontend
	for _, p := range frontend.PerPort {
		if p.Port == l.spec.Port {
			return p.TLS.Validation
		}
	}
	return frontend.Default.Validation
}

// verifyClients configures the verification of client certificates. It returns false if the listener must not serve
// connections, because no CA certificate is valid.
func (t *translator) verifyClients(l *listener, config *model.ServerTLS) bool {
	validation := validationOf(l)
	if validation == nil || l.kind != model.HTTPS {
		return true
	}
	pool, n := x509.NewCertPool(), 0
	for _, ref := range validation.CACertificateRefs {
		if ref.Group != "" || ref.Kind != "ConfigMap" {
			l.unresolve(&problem{string(gatewayv1.ListenerReasonInvalidCACertificateKind), "CA certificates must be ConfigMaps"})
			continue
		}
		namespace := string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(l.gateway.Namespace)))
		if !t.grants.allow(grantFrom{gatewayv1.GroupName, "Gateway", l.gateway.Namespace}, grantTo{"", "ConfigMap", namespace}, string(ref.Name)) {
			l.unresolve(&problem{string(gatewayv1.ListenerReasonRefNotPermitted), fmt.Sprintf("no ReferenceGrant allows to refer to ConfigMap %s/%s", namespace, ref.Name)})
			continue
		}
		if !t.addRoots(pool, namespace, string(ref.Name)) {
			l.unresolve(&problem{string(gatewayv1.ListenerReasonInvalidCACertificateRef), fmt.Sprintf("ConfigMap %s/%s does not exist or has no certificates in the key ca.crt", namespace, ref.Name)})
			continue
		}
		n++
	}
	if n == 0 {
		l.invalid = &problem{string(gatewayv1.ListenerReasonNoValidCACertificate), "no CA certificate to verify clients with is valid"}
		return false
	}
	config.ClientCAs, config.AllowUnverifiedClients = pool, validation.Mode == gatewayv1.AllowInsecureFallback
	return true
}

// addRoots adds the certificates in the key ca.crt of a ConfigMap to pool. It returns false if there are none.
func (t *translator) addRoots(pool *x509.CertPool, namespace, name string) bool {
	cm := t.Lookup.ConfigMap(namespace, name)
	return cm != nil && pool.AppendCertsFromPEM([]byte(cm.Data["ca.crt"]))
}
