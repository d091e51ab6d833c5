package translate

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
)

// Ports at which Ingresses are served.
const (
	ingressHTTP  = 80
	ingressHTTPS = 443
)

// legacyClassAnnotation is the annotation that preceded spec.ingressClassName.
const legacyClassAnnotation = "kubernetes.io/ingress.class"

// ingress is an Ingress of this controller while it is translated.
type ingress struct {
	*networkingv1.Ingress
	// tls are the listeners of the Ingress' TLS hosts.
	tls []*model.Listener
}

// addIngresses adds the Ingresses of this controller's classes to the ports 80 and 443 of the shared frontend. A host that a
// listener of a Gateway serves there stays with this listener; the paths of the Ingress follow those of its routes.
func (t *translator) addIngresses() {
	var all []*ingress
	for _, obj := range sortedByAge(t.Ingresses) {
		if t.isOurs(obj) && obj.DeletionTimestamp == nil {
			all = append(all, &ingress{Ingress: obj})
		}
	}
	for _, in := range all {
		t.addIngressTLS(in)
	}
	for _, in := range all {
		for _, rule := range in.Spec.Rules {
			if rule.HTTP != nil {
				host := strings.ToLower(rule.Host)
				t.addIngressRoute(in, host, t.ingressRules(in, host, rule.HTTP.Paths))
			}
		}
	}
	// The default backends follow all rules, so that they only get what no rule matches.
	for _, in := range all {
		if b := in.Spec.DefaultBackend; b != nil {
			t.addIngressRoute(in, "", []*model.Rule{t.ingressRule(in, model.Match{PathKind: model.PathPrefix}, b)})
		}
	}
	for _, in := range all {
		status := []networkingv1.IngressLoadBalancerIngress{}
		for _, a := range t.addressesOf(SharedFrontend) {
			if *a.Type == gatewayv1.HostnameAddressType {
				status = append(status, networkingv1.IngressLoadBalancerIngress{Hostname: a.Value})
			} else {
				status = append(status, networkingv1.IngressLoadBalancerIngress{IP: a.Value})
			}
		}
		t.status.Ingresses[nameOf(in)] = status
	}
}

// isOurs reports whether the class of an Ingress, by spec.ingressClassName or else by the former annotation, belongs to
// this controller. It returns false for an Ingress without a class.
func (t *translator) isOurs(in *networkingv1.Ingress) bool {
	name := in.Annotations[legacyClassAnnotation]
	if in.Spec.IngressClassName != nil {
		name = *in.Spec.IngressClassName
	}
	return name != "" && slices.ContainsFunc(t.IngressClasses, func(c *networkingv1.IngressClass) bool {
		return c.Name == name && c.Spec.Controller == ControllerName
	})
}

// warn records a problem of an Ingress.
func (t *translator) warn(in *ingress, format string, args ...any) {
	name := nameOf(in)
	t.status.IngressProblems[name] = append(t.status.IngressProblems[name], fmt.Sprintf(format, args...))
}

// addIngressTLS adds a listener for each TLS host of an Ingress. A TLS section without hosts applies to the hosts of all rules.
// A section whose Secret is missing or invalid only adds a problem to the Ingress.
func (t *translator) addIngressTLS(in *ingress) {
	for _, section := range in.Spec.TLS {
		certificate, err := t.Lookup.Certificate(in.Namespace, section.SecretName)
		if err == nil && certificate == nil {
			err = fmt.Errorf("it does not exist, or its type is not kubernetes.io/tls")
		}
		if err != nil {
			t.warn(in, "TLS is not served for the hosts of Secret %s: %v", section.SecretName, err)
			continue
		}
		hosts := slices.Clone(section.Hosts)
		if len(hosts) == 0 {
			for _, rule := range in.Spec.Rules {
				hosts = append(hosts, rule.Host)
			}
			if in.Spec.DefaultBackend != nil {
				hosts = append(hosts, "")
			}
		}
		for _, host := range hosts {
			l := t.ingressListener(in, ingressHTTPS, model.HTTPS, strings.ToLower(host), false)
			if l == nil {
				continue
			}
			if l.TLS == nil {
				l.TLS = &model.ServerTLS{}
			}
			if strings.HasPrefix(l.Name, ingressListenerPrefix) && !slices.Contains(l.TLS.Certificates, certificate) {
				l.TLS.Certificates = append(l.TLS.Certificates, certificate)
			}
			if !slices.Contains(in.tls, l) {
				in.tls = append(in.tls, l)
			}
		}
	}
}

// ingressListenerPrefix is the beginning of the names of listeners that exist for Ingresses. Names of Gateways' listeners
// begin with a namespace, which cannot contain a capital letter.
const ingressListenerPrefix = "Ingress/"

// ingressListener returns the listener of the shared frontend's port for a host, and creates it if necessary. If covering
// is true, the listener may be for a pattern that covers the host. It returns nil if a Gateway uses the port with another
// protocol.
func (t *translator) ingressListener(in *ingress, number int32, kind model.Kind, host string, covering bool) *model.Listener {
	id := model.PortID{Frontend: SharedFrontend, Number: number}
	p := t.ports[id]
	if p == nil {
		p = &port{}
		t.ports[id] = p
	}
	var best *model.Listener
	for _, l := range p.listeners {
		if !l.kind.Compatible(kind) {
			t.warn(in, "port %d is used by listener %s of a Gateway with another protocol", number, l.name())
			return nil
		}
		if l.out == nil || l.kind != kind || l.out.Hostname != host && (!covering || !covers(l.out.Hostname, host)) {
			continue
		}
		if best == nil || len(l.out.Hostname) > len(best.Hostname) {
			best = l.out
		}
	}
	if best == nil {
		if covering {
			host = ""
		}
		best = &model.Listener{Name: fmt.Sprintf("%s%d/%s", ingressListenerPrefix, number, host), Kind: kind, Hostname: host}
		p.listeners = append(p.listeners, &listener{kind: kind, port: id, out: best})
	}
	return best
}

// addIngressRoute adds rules of an Ingress for a host to the listeners that serve it.
func (t *translator) addIngressRoute(in *ingress, host string, rules []*model.Rule) {
	r := model.AttachedRoute{Hostnames: []string{host}, Route: &model.Route{Name: "Ingress/" + in.Namespace + "/" + in.Name, Rules: rules}}
	if l := t.ingressListener(in, ingressHTTP, model.HTTP, host, true); l != nil {
		l.Routes = append(l.Routes, r)
	}
	for _, l := range in.tls {
		switch {
		case covers(l.Hostname, host):
			l.Routes = append(l.Routes, r)
		case host == "":
			withName := r
			withName.Hostnames = []string{l.Hostname}
			if l.Hostname != "" && slices.ContainsFunc(in.Spec.Rules, func(rule networkingv1.IngressRule) bool { return strings.EqualFold(rule.Host, l.Hostname) }) {
				withName.Hostnames = []string{""} // after the rules for the host
			}
			l.Routes = append(l.Routes, withName)
		}
	}
}

// ingressRules returns the rules of an Ingress for the paths of a host. The wildcard of a host stands for one label.
func (t *translator) ingressRules(in *ingress, host string, paths []networkingv1.HTTPIngressPath) []*model.Rule {
	var out []*model.Rule
	for i := range paths {
		p := &paths[i]
		m := model.Match{PathKind: model.PathPrefix, Path: strings.TrimRight(p.Path, "/")}
		if ptr.Deref(p.PathType, networkingv1.PathTypePrefix) == networkingv1.PathTypeExact {
			m.PathKind, m.Path = model.PathExact, p.Path
		}
		if strings.HasPrefix(host, "*.") {
			m.HostLabels = 1 + strings.Count(host, ".")
		}
		out = append(out, t.ingressRule(in, m, &p.Backend))
	}
	return out
}

// ingressRule returns a rule with a match and a backend of an Ingress. As users of other Ingress controllers expect, the response
// is 503 if the backend is invalid.
func (t *translator) ingressRule(in *ingress, m model.Match, b *networkingv1.IngressBackend) *model.Rule {
	return &model.Rule{Matches: []model.Match{m}, Backends: t.ingressBackends(in, b), InvalidStatus: http.StatusServiceUnavailable}
}

// ingressBackends resolves a backend of an Ingress. The result contains an invalid backend if it cannot be resolved.
func (t *translator) ingressBackends(in *ingress, b *networkingv1.IngressBackend) []model.WeightedBackend {
	invalid := []model.WeightedBackend{{Weight: 1}}
	if b.Service == nil {
		t.warn(in, "backends must be Services")
		return invalid
	}
	number := b.Service.Port.Number
	if name := b.Service.Port.Name; name != "" {
		if svc := t.Lookup.Service(in.Namespace, b.Service.Name); svc != nil {
			for _, p := range svc.Spec.Ports {
				if p.Name == name {
					number = p.Port
				}
			}
		}
	}
	ref := gatewayv1.BackendObjectReference{Name: gatewayv1.ObjectName(b.Service.Name), Port: &number}
	backend, _, p := t.backend(grantFrom{networkingv1.GroupName, "Ingress", in.Namespace}, ref, model.BackendHTTP1)
	if p != nil {
		t.warn(in, "%s", p.message)
	}
	if backend == nil {
		return invalid
	}
	return []model.WeightedBackend{{Backend: backend, Weight: 1}}
}
