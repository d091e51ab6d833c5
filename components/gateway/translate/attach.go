package translate

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// route is a route of any kind (HTTPRoute, GRPCRoute, TLSRoute, TCPRoute or UDPRoute) while it is translated.
type route struct {
	metav1.Object
	created   int64 // creation time in microseconds
	kind      gatewayv1.Kind
	parents   []gatewayv1.ParentReference
	hostnames []string
	// byHostname is false for kinds without hostnames.
	byHostname bool
	// compile validates the rules. It is called once, and only if a parent belongs to this gateway.
	compile func() compiled
}

// compiled is the result of compiling a route: how to attach it to a listener, or why it is rejected.
type compiled struct {
	// rejected is why the route is not accepted, unresolved why a reference is not resolved.
	rejected, unresolved *problem
	// attach adds the route to a listener that can serve connections.
	attach func(t *translator, l *listener, hostnames []string)
	// targets are the ports of Services that the route uses, for policies.
	targets []*policyTarget
	// services are those from which the result follows, besides the route and the ReferenceGrants.
	services []usedService
}

// lower converts hostnames to lower case.
func lower(hostnames []gatewayv1.Hostname) []string {
	var out []string
	for _, h := range hostnames {
		out = append(out, strings.ToLower(string(h)))
	}
	return out
}

// attachRoutes attaches all routes to listeners, from the oldest to the newest, and writes their status.
func (t *translator) attachRoutes() {
	routes := make([]*route, 0, len(t.HTTPRoutes)+len(t.GRPCRoutes)+len(t.TLSRoutes)+len(t.TCPRoutes)+len(t.UDPRoutes))
	add := func(o metav1.Object, kind gatewayv1.Kind, parents []gatewayv1.ParentReference, hostnames []string, byHostname bool, compile func() compiled) {
		created := o.GetCreationTimestamp()
		routes = append(routes, &route{o, created.UnixMicro(), kind, parents, hostnames, byHostname, compile})
	}
	for _, r := range t.HTTPRoutes {
		add(r, "HTTPRoute", r.Spec.ParentRefs, lower(r.Spec.Hostnames), true, func() compiled { return t.compileHTTPRoute(r) })
	}
	for _, r := range t.GRPCRoutes {
		add(r, "GRPCRoute", r.Spec.ParentRefs, lower(r.Spec.Hostnames), true, func() compiled { return t.compileGRPCRoute(r) })
	}
	for _, r := range t.TLSRoutes {
		add(r, "TLSRoute", r.Spec.ParentRefs, lower(r.Spec.Hostnames), true, func() compiled { return t.compileTLSRoute(r) })
	}
	for _, r := range t.TCPRoutes {
		add(r, "TCPRoute", r.Spec.ParentRefs, nil, false, func() compiled { return t.compileTCPRoute(r) })
	}
	for _, r := range t.UDPRoutes {
		add(r, "UDPRoute", r.Spec.ParentRefs, nil, false, func() compiled { return t.compileUDPRoute(r) })
	}
	slices.SortFunc(routes, func(a, b *route) int {
		return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.kind, b.kind))
	})
	for _, r := range routes {
		if r.GetDeletionTimestamp() == nil {
			t.attachRoute(r)
		}
	}
}

// attachRoute attaches a route to the listeners of its parents that allow it, and sets its status for each parent of
// this controller. A route with an invalid rule is attached to no listener.
func (t *translator) attachRoute(r *route) {
	var c compiled
	var statuses []gatewayv1.RouteParentStatus
	// Most routes have one or two parents.
	var attached []*listener
	var gateways []*gateway
	for _, ref := range r.parents {
		gw, listeners := t.parentOf(r, ref)
		if gw == nil {
			continue
		}
		if c.attach == nil {
			c = t.compiled(r)
		}
		accepted := c.rejected
		if accepted == nil {
			var selected []*listener
			if selected, accepted = t.selectListeners(r, ref, listeners); accepted == nil {
				for _, l := range selected {
					if slices.Contains(attached, l) {
						continue
					}
					attached = append(attached, l)
					l.attached++
					if l.out != nil {
						c.attach(t, l, intersectHostnames(l.hostname(), r.hostnames))
					}
				}
			}
		}
		if !slices.Contains(gateways, gw) {
			gateways = append(gateways, gw)
			for _, target := range c.targets {
				t.policies.used(target, gw)
			}
		}
		statuses = append(statuses, gatewayv1.RouteParentStatus{
			ParentRef: ref, ControllerName: ControllerName,
			Conditions: []metav1.Condition{
				resolve(string(gatewayv1.RouteConditionAccepted), string(gatewayv1.RouteReasonAccepted), accepted, r.GetGeneration()),
				resolve(string(gatewayv1.RouteConditionResolvedRefs), string(gatewayv1.RouteReasonResolvedRefs), c.unresolved, r.GetGeneration()),
			},
		})
	}
	if len(statuses) > 0 {
		t.status.Routes[RouteKey{r.kind, nameOf(r)}] = statuses
	}
}

// parentOf returns the Gateway of a parent reference, with the listeners of the parent. The Gateway is nil if the parent
// does not belong to this controller. A ListenerSet that its Gateway does not accept has no listeners.
func (t *translator) parentOf(r *route, ref gatewayv1.ParentReference) (*gateway, []*listener) {
	name := types.NamespacedName{Namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(r.GetNamespace()))), Name: string(ref.Name)}
	switch {
	case isKind(ref.Group, ref.Kind, gatewayv1.GroupName, "Gateway"):
		gw := t.gateways[name]
		if gw == nil {
			return nil, nil
		}
		own := slices.IndexFunc(gw.listeners, func(l *listener) bool { return l.set != nil })
		if own < 0 {
			own = len(gw.listeners)
		}
		return gw, gw.listeners[:own]
	case ptr.Deref(ref.Group, gatewayv1.GroupName) == gatewayv1.GroupName && ptr.Deref(ref.Kind, "") == "ListenerSet":
		set := t.sets[name]
		if set == nil {
			return nil, nil
		}
		if set.problem != nil {
			return set.gateway, nil
		}
		return set.gateway, set.listeners
	}
	return nil, nil
}

// selectListeners returns the listeners that a parent reference of a route selects and that allow the route, or the
// problem if there is none.
func (t *translator) selectListeners(r *route, ref gatewayv1.ParentReference, listeners []*listener) ([]*listener, *problem) {
	var p *problem
	var out []*listener
	for _, l := range listeners {
		if ref.SectionName != nil && *ref.SectionName != l.spec.Name || ref.Port != nil && *ref.Port != l.spec.Port {
			continue
		}
		if !l.accepted() || !t.allowsRoute(l, r) {
			if p == nil {
				p = &problem{string(gatewayv1.RouteReasonNotAllowedByListeners), "no listener allows routes of this kind and namespace"}
			}
			continue
		}
		if r.byHostname && len(intersectHostnames(l.hostname(), r.hostnames)) == 0 {
			p = &problem{string(gatewayv1.RouteReasonNoMatchingListenerHostname), "no listener has a hostname that intersects with those of the route"}
			continue
		}
		out = append(out, l)
	}
	switch {
	case len(out) > 0:
		return out, nil
	case p == nil:
		p = &problem{string(gatewayv1.RouteReasonNoMatchingParent), "the parent has no listener with this sectionName and port"}
	}
	return nil, p
}

// allowsRoute reports whether allowedRoutes of a listener allows the kind and namespace of a route. By default, only
// the namespace of the listener is allowed.
func (t *translator) allowsRoute(l *listener, r *route) bool {
	if !slices.ContainsFunc(l.kinds, func(k gatewayv1.RouteGroupKind) bool { return k.Kind == r.kind }) {
		return false
	}
	from, selector := gatewayv1.NamespacesFromSame, (*metav1.LabelSelector)(nil)
	if allowed := l.spec.AllowedRoutes; allowed != nil && allowed.Namespaces != nil {
		from, selector = ptr.Deref(allowed.Namespaces.From, gatewayv1.NamespacesFromSame), allowed.Namespaces.Selector
	}
	return t.selectsNamespace(from, selector, l.namespace(), r.GetNamespace())
}
