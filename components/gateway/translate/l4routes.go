package translate

import (
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
)

// compileTLSRoute compiles a TLSRoute.
func (t *translator) compileTLSRoute(r *gatewayv1.TLSRoute) compiled {
	var refs []gatewayv1.BackendRef
	for _, rule := range r.Spec.Rules {
		refs = append(refs, rule.BackendRefs...)
	}
	return t.compileForward("TLSRoute", r.Namespace, r.Name, refs)
}

// compileTCPRoute compiles a TCPRoute.
func (t *translator) compileTCPRoute(r *gatewayv1.TCPRoute) compiled {
	var refs []gatewayv1.BackendRef
	for _, rule := range r.Spec.Rules {
		refs = append(refs, rule.BackendRefs...)
	}
	return t.compileForward("TCPRoute", r.Namespace, r.Name, refs)
}

// compileUDPRoute compiles a UDPRoute.
func (t *translator) compileUDPRoute(r *gatewayv1.UDPRoute) compiled {
	var refs []gatewayv1.BackendRef
	for _, rule := range r.Spec.Rules {
		refs = append(refs, rule.BackendRefs...)
	}
	return t.compileForward("UDPRoute", r.Namespace, r.Name, refs)
}

// compileForward compiles a route that forwards connections or datagrams to the backends of refs. Its rules have no
// conditions, and the API allows only one.
func (t *translator) compileForward(kind, namespace, name string, refs []gatewayv1.BackendRef) compiled {
	from := grantFrom{gatewayv1.GroupName, kind, namespace}
	forward := model.Forward{Name: kind + "/" + namespace + "/" + name}
	var unresolved *problem
	for _, ref := range refs {
		backend, _, p := t.backend(from, ref.BackendObjectReference, model.BackendHTTP1)
		if p != nil && unresolved == nil {
			unresolved = p
		}
		forward.Backends = append(forward.Backends, model.WeightedBackend{Backend: backend, Weight: ptr.Deref(ref.Weight, 1)})
	}
	return compiled{unresolved: unresolved, attach: func(_ *translator, l *listener, hostnames []string) {
		f := forward
		f.Hostnames = hostnames
		l.out.Forwards = append(l.out.Forwards, f)
	}}
}
