package translate

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/gateway/model"
)

// Translator translates objects again after some of them have changed. It keeps the rules of HTTPRoutes and GRPCRoutes, and
// compiles only those of routes that have changed, or whose Services, policies or ReferenceGrants have. The result is the same as that of
// Translate. The zero value is ready to use. It must not be used concurrently.
//
// It compares objects by their address, because objects of informers are immutable.
type Translator struct {
	routes map[RouteKey]*keptRoute
	grants map[*gatewayv1.ReferenceGrant]bool
	// round is the number of the translation. Routes that are not used in a round are removed after it.
	round    int
	backends int // number of the last translation
}

// keptRoute is a compiled version of a route.
type keptRoute struct {
	object metav1.Object
	compiled
	round int // in which it was used last
}

// usedService is a Service that a route refers to, and the backend that was compiled from it.
type usedService struct {
	namespace, name string
	service         *corev1.Service // nil if it does not exist
	backend         *model.Backend  // nil if it is invalid
	target          *policyTarget   // nil if the port does not exist
	policed         bool            // a policy applies to target
	version         string          // of that policy
}

// Translate translates objects.
func (k *Translator) Translate(o Objects) Result {
	k.round++
	if k.routes == nil || k.grantsChanged(o.Grants) {
		k.routes = map[RouteKey]*keptRoute{}
		k.grants = make(map[*gatewayv1.ReferenceGrant]bool, len(o.Grants))
		for _, g := range o.Grants {
			k.grants[g] = true
		}
	}
	result := newTranslator(o, k).translate()
	for key, r := range k.routes {
		if r.round != k.round {
			delete(k.routes, key)
		}
	}
	return result
}

// grantsChanged reports whether the ReferenceGrants differ from those of the last translation.
func (k *Translator) grantsChanged(grants []*gatewayv1.ReferenceGrant) bool {
	if len(grants) != len(k.grants) {
		return true
	}
	for _, g := range grants {
		if !k.grants[g] {
			return true
		}
	}
	return false
}

// compiled returns the result of compiling a route, which may be that of an earlier translation.
func (t *translator) compiled(r *route) compiled {
	if r.kind != "HTTPRoute" && r.kind != "GRPCRoute" {
		return r.compile()
	}
	key := RouteKey{r.kind, nameOf(r)}
	kept := t.kept.routes[key]
	if kept == nil || kept.object != r.Object || !t.unchanged(kept.services) {
		kept = &keptRoute{object: r.Object, compiled: r.compile()}
		t.kept.routes[key] = kept
	}
	kept.round = t.kept.round
	for i := range kept.services {
		if b := kept.services[i].backend; b != nil && t.backends[b.Key] == nil {
			t.backends[b.Key] = b
		}
	}
	return kept.compiled
}

// use returns what the compiled form of a reference depends on.
func (t *translator) use(from grantFrom, ref gatewayv1.BackendObjectReference, backend *model.Backend, target *policyTarget) usedService {
	u := usedService{namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(from.namespace))), name: string(ref.Name), backend: backend, target: target}
	u.service = t.Lookup.Service(u.namespace, u.name)
	if target != nil {
		u.policed, u.version = t.policyVersion(target)
	}
	return u
}

// policyVersion reports whether a policy applies to a target, and its version, which is empty if it is invalid.
func (t *translator) policyVersion(target *policyTarget) (bool, string) {
	if p := t.policies.of(target); p != nil {
		return true, p.version
	}
	return false, ""
}

// unchanged reports whether Services and the policies that apply to them are the same as when they were compiled.
func (t *translator) unchanged(services []usedService) bool {
	for i := range services {
		u := &services[i]
		if t.Lookup.Service(u.namespace, u.name) != u.service {
			return false
		}
		if u.target == nil {
			continue
		}
		if policed, version := t.policyVersion(u.target); policed != u.policed || version != u.version {
			return false
		}
	}
	return true
}
