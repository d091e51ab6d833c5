package translate

import (
	"crypto/tls"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"hyperkube/components/gateway/model"
)

// fixture is a Lookup with objects by namespace/name.
type fixture struct {
	services     map[string]*corev1.Service
	configMaps   map[string]*corev1.ConfigMap
	namespaces   map[string]*corev1.Namespace
	certificates map[string]*tls.Certificate
}

func (f *fixture) Service(namespace, name string) *corev1.Service {
	return f.services[namespace+"/"+name]
}

func (f *fixture) ConfigMap(namespace, name string) *corev1.ConfigMap {
	return f.configMaps[namespace+"/"+name]
}

func (f *fixture) Namespace(name string) *corev1.Namespace { return f.namespaces[name] }

func (f *fixture) Certificate(namespace, name string) (*tls.Certificate, error) {
	if name == "malformed" {
		return nil, errors.New("no key pair")
	}
	return f.certificates[namespace+"/"+name], nil
}

// created returns a creation time: minute of an hour.
func created(minute int) metav1.Time {
	return metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC))
}

// objects parses YAML documents. Each object is a minute newer than the one before.
func objects(t *testing.T, text string) Objects {
	t.Helper()
	f := &fixture{
		services: map[string]*corev1.Service{
			"apps/web": {ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}}}},
			"other/db": {ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "db"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}},
			"apps/ext": {ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "ext"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}},
		},
		namespaces: map[string]*corev1.Namespace{
			"apps":  {ObjectMeta: metav1.ObjectMeta{Name: "apps", Labels: map[string]string{"team": "a"}}},
			"other": {ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		},
		certificates: map[string]*tls.Certificate{"apps/cert": {}, "other/cert": {}},
	}
	o := Objects{Lookup: f, Classes: []*gatewayv1.GatewayClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "hyperkube"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: ControllerName}},
		{ObjectMeta: metav1.ObjectMeta{Name: "own", Annotations: map[string]string{ServiceAnnotation: ServiceClusterIP}}, Spec: gatewayv1.GatewayClassSpec{ControllerName: ControllerName}},
		{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: "example.com/other"}},
	}, IngressClasses: []*networkingv1.IngressClass{{ObjectMeta: metav1.ObjectMeta{Name: "hyperkube"}, Spec: networkingv1.IngressClassSpec{Controller: ControllerName}}}}
	for i, doc := range strings.Split(text, "---\n") {
		var head metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatal(err)
		}
		switch head.Kind {
		case "Gateway":
			add(t, &o.Gateways, doc, i)
		case "ListenerSet":
			add(t, &o.ListenerSets, doc, i)
		case "HTTPRoute":
			add(t, &o.HTTPRoutes, doc, i)
		case "GRPCRoute":
			add(t, &o.GRPCRoutes, doc, i)
		case "TLSRoute":
			add(t, &o.TLSRoutes, doc, i)
		case "TCPRoute":
			add(t, &o.TCPRoutes, doc, i)
		case "UDPRoute":
			add(t, &o.UDPRoutes, doc, i)
		case "ReferenceGrant":
			add(t, &o.Grants, doc, i)
		case "BackendTLSPolicy":
			add(t, &o.BackendPolicies, doc, i)
		case "Ingress":
			add(t, &o.Ingresses, doc, i)
		case "":
		default:
			t.Fatalf("unknown kind %s", head.Kind)
		}
	}
	return o
}

// add parses an object and appends it to list.
func add[T any, P interface {
	*T
	metav1.Object
}](t *testing.T, list *[]*T, doc string, minute int) {
	t.Helper()
	obj := P(new(T))
	if err := yaml.UnmarshalStrict([]byte(doc), obj); err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	obj.SetCreationTimestamp(created(minute))
	if obj.GetNamespace() == "" {
		obj.SetNamespace("apps")
	}
	*list = append(*list, obj)
}

// text returns conditions as "Type=Status/Reason …", sorted by type.
func text(conditions []metav1.Condition) string {
	var out []string
	for _, c := range conditions {
		out = append(out, c.Type+"="+string(c.Status)+"/"+c.Reason)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

const gatewayYAML = `kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: hyperkube
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: all, port: 8080, protocol: HTTP, hostname: "*.example.com", allowedRoutes: {namespaces: {from: All}}}
---
`

// TestRouteStatus checks the conditions of a route for its first parent.
func TestRouteStatus(t *testing.T) {
	route := func(metadata, spec string) string {
		return gatewayYAML + "kind: HTTPRoute\nmetadata: {name: r" + metadata + "}\nspec:\n" + spec
	}
	const backend = "  rules: [{backendRefs: [{name: web, port: 80}]}]\n"
	for _, test := range []struct{ name, objects, want string }{
		{"valid", route("", "  parentRefs: [{name: gw}]\n"+backend), "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"},
		{"unknown section", route("", "  parentRefs: [{name: gw, sectionName: none}]\n"+backend), "Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs"},
		{"section of another port", route("", "  parentRefs: [{name: gw, sectionName: http, port: 8080}]\n"+backend), "Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs"},
		{"namespace not allowed", route(", namespace: other", "  parentRefs: [{name: gw, namespace: apps, sectionName: http}]\n  rules: [{backendRefs: [{name: db, port: 80}]}]\n"), "Accepted=False/NotAllowedByListeners ResolvedRefs=True/ResolvedRefs"},
		{"namespace allowed", route(", namespace: other", "  parentRefs: [{name: gw, namespace: apps, sectionName: all}]\n  rules: [{backendRefs: [{name: db, port: 80}]}]\n"), "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"},
		{"hostname", route("", "  parentRefs: [{name: gw, sectionName: all}]\n  hostnames: [example.org]\n"+backend), "Accepted=False/NoMatchingListenerHostname ResolvedRefs=True/ResolvedRefs"},
		{"missing Service", route("", "  parentRefs: [{name: gw}]\n  rules: [{backendRefs: [{name: none, port: 80}]}]\n"), "Accepted=True/Accepted ResolvedRefs=False/BackendNotFound"},
		{"missing port", route("", "  parentRefs: [{name: gw}]\n  rules: [{backendRefs: [{name: web, port: 81}]}]\n"), "Accepted=True/Accepted ResolvedRefs=False/BackendNotFound"},
		{"external name", route("", "  parentRefs: [{name: gw}]\n  rules: [{backendRefs: [{name: ext, port: 80}]}]\n"), "Accepted=True/Accepted ResolvedRefs=False/BackendNotFound"},
		{"kind of backend", route("", "  parentRefs: [{name: gw}]\n  rules: [{backendRefs: [{kind: Pod, name: web, port: 80}]}]\n"), "Accepted=True/Accepted ResolvedRefs=False/InvalidKind"},
		{"no grant", route("", "  parentRefs: [{name: gw}]\n  rules: [{backendRefs: [{name: db, namespace: other, port: 80}]}]\n"), "Accepted=True/Accepted ResolvedRefs=False/RefNotPermitted"},
		{"grant for another name", route("", "  parentRefs: [{name: gw}]\n  rules: [{backendRefs: [{name: db, namespace: other, port: 80}]}]\n") +
			"---\nkind: ReferenceGrant\nmetadata: {name: g, namespace: other}\nspec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: apps}], to: [{group: \"\", kind: Service, name: x}]}\n",
			"Accepted=True/Accepted ResolvedRefs=False/RefNotPermitted"},
		{"grant", route("", "  parentRefs: [{name: gw}]\n  rules: [{backendRefs: [{name: db, namespace: other, port: 80}]}]\n") +
			"---\nkind: ReferenceGrant\nmetadata: {name: g, namespace: other}\nspec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: apps}], to: [{group: \"\", kind: Service}]}\n",
			"Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"},
		{"unsupported filter", route("", "  parentRefs: [{name: gw}]\n  rules: [{filters: [{type: ExtensionRef}], backendRefs: [{name: web, port: 80}]}]\n"), "Accepted=False/UnsupportedValue ResolvedRefs=True/ResolvedRefs"},
		{"invalid expression", route("", "  parentRefs: [{name: gw}]\n  rules: [{matches: [{path: {type: RegularExpression, value: '('}}], backendRefs: [{name: web, port: 80}]}]\n"), "Accepted=False/UnsupportedValue ResolvedRefs=True/ResolvedRefs"},
		{"Gateway of another controller", strings.ReplaceAll(route("", "  parentRefs: [{name: gw}]\n"+backend), "gatewayClassName: hyperkube", "gatewayClassName: foreign"), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := Translate(objects(t, test.objects))
			got := ""
			for _, statuses := range r.Status.Routes {
				got = text(statuses[0].Conditions)
			}
			if got != test.want {
				t.Errorf("conditions %q, want %q", got, test.want)
			}
		})
	}
}

// TestListenerStatus checks the conditions and the number of routes of the last listener of the Gateway gw.
func TestListenerStatus(t *testing.T) {
	gw := func(listeners string) string {
		return "kind: Gateway\nmetadata: {name: gw}\nspec:\n  gatewayClassName: hyperkube\n  listeners:\n" + listeners
	}
	const pending = "Accepted=True/Accepted Conflicted=False/NoConflicts Programmed=False/Pending ResolvedRefs=True/ResolvedRefs"
	for _, test := range []struct{ name, objects, want, kinds string }{
		{"HTTP", gw("  - {name: a, port: 80, protocol: HTTP}\n"), pending, "HTTPRoute GRPCRoute"},
		{"protocol", gw("  - {name: a, port: 80, protocol: SCTP}\n"), "Accepted=False/UnsupportedProtocol Conflicted=False/NoConflicts Programmed=False/Invalid ResolvedRefs=True/ResolvedRefs", ""},
		{"kind", gw("  - {name: a, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: TCPRoute}]}}\n"), "Accepted=True/Accepted Conflicted=False/NoConflicts Programmed=False/Invalid ResolvedRefs=False/InvalidRouteKinds", ""},
		{"one kind", gw("  - {name: a, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: TCPRoute}, {kind: HTTPRoute}]}}\n"), "Accepted=True/Accepted Conflicted=False/NoConflicts Programmed=False/Pending ResolvedRefs=False/InvalidRouteKinds", "HTTPRoute"},
		{"same hostname", gw("  - {name: a, port: 80, protocol: HTTP, hostname: a.b}\n  - {name: b, port: 80, protocol: HTTP, hostname: a.b}\n"),
			"Accepted=False/HostnameConflict Conflicted=True/HostnameConflict Programmed=False/HostnameConflict ResolvedRefs=True/ResolvedRefs", "HTTPRoute GRPCRoute"},
		{"other hostname", gw("  - {name: a, port: 80, protocol: HTTP, hostname: a.b}\n  - {name: b, port: 80, protocol: HTTP}\n"), pending, "HTTPRoute GRPCRoute"},
		{"other protocol", gw("  - {name: a, port: 80, protocol: HTTP, hostname: a.b}\n  - {name: b, port: 80, protocol: TCP}\n"),
			"Accepted=False/ProtocolConflict Conflicted=True/ProtocolConflict Programmed=False/ProtocolConflict ResolvedRefs=True/ResolvedRefs", "TCPRoute"},
		{"TCP and UDP", gw("  - {name: a, port: 53, protocol: TCP}\n  - {name: b, port: 53, protocol: UDP}\n"), pending, "UDPRoute"},
		{"older Gateway", strings.Replace(gw("  - {name: a, port: 80, protocol: HTTP}\n"), "name: gw", "name: older", 1) + "---\n" + gw("  - {name: a, port: 80, protocol: HTTP}\n"),
			"Accepted=False/HostnameConflict Conflicted=True/HostnameConflict Programmed=False/HostnameConflict ResolvedRefs=True/ResolvedRefs", "HTTPRoute GRPCRoute"},
		{"older Gateway with its own address", strings.Replace(strings.Replace(gw("  - {name: a, port: 80, protocol: HTTP}\n"), "name: gw", "name: older", 1), "gatewayClassName: hyperkube", "gatewayClassName: own", 1) + "---\n" + gw("  - {name: a, port: 80, protocol: HTTP}\n"), pending, "HTTPRoute GRPCRoute"},
		{"certificate", gw("  - {name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}\n"), pending, "HTTPRoute GRPCRoute"},
		{"missing certificate", gw("  - {name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: none}]}}\n"), "Accepted=True/Accepted Conflicted=False/NoConflicts Programmed=False/Invalid ResolvedRefs=False/InvalidCertificateRef", "HTTPRoute GRPCRoute"},
		{"malformed certificate", gw("  - {name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: malformed}]}}\n"), "Accepted=True/Accepted Conflicted=False/NoConflicts Programmed=False/Invalid ResolvedRefs=False/InvalidCertificateRef", "HTTPRoute GRPCRoute"},
		{"one malformed certificate", gw("  - {name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: malformed}, {name: cert}]}}\n"), "Accepted=True/Accepted Conflicted=False/NoConflicts Programmed=False/Pending ResolvedRefs=False/InvalidCertificateRef", "HTTPRoute GRPCRoute"},
		{"certificate without a grant", gw("  - {name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert, namespace: other}]}}\n"), "Accepted=True/Accepted Conflicted=False/NoConflicts Programmed=False/Invalid ResolvedRefs=False/RefNotPermitted", "HTTPRoute GRPCRoute"},
		{"passthrough", gw("  - {name: a, port: 443, protocol: TLS, tls: {mode: Passthrough}}\n"), pending, "TLSRoute"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := Translate(objects(t, test.objects))
			status := r.Status.Gateways[types.NamespacedName{Namespace: "apps", Name: "gw"}]
			l := status.Listeners[len(status.Listeners)-1]
			var kinds []string
			for _, k := range l.SupportedKinds {
				kinds = append(kinds, string(k.Kind))
			}
			if got := text(l.Conditions); got != test.want || strings.Join(kinds, " ") != test.kinds || l.SupportedKinds == nil {
				t.Errorf("conditions %q, want %q; kinds %v, want %q", got, test.want, kinds, test.kinds)
			}
		})
	}
}

// TestGatewayStatus checks the conditions and addresses of a Gateway while its Service is created.
func TestGatewayStatus(t *testing.T) {
	o := objects(t, gatewayYAML)
	name := types.NamespacedName{Namespace: "apps", Name: "gw"}
	r := Translate(o)
	if got, want := text(r.Status.Gateways[name].Conditions), "Accepted=True/Accepted Programmed=False/AddressNotAssigned"; got != want {
		t.Errorf("without a Service: %q, want %q", got, want)
	}
	if len(r.Frontends) != 1 || r.Frontends[0].Name != SharedFrontend || len(r.Frontends[0].Ports) != 2 || r.Frontends[0].Ports[0].Number != 80 {
		t.Errorf("frontends %+v", r.Frontends)
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: SharedFrontend}}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.Ports = []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}, {Port: 8080, Protocol: corev1.ProtocolTCP}}
	svc.Status.Conditions = []metav1.Condition{{Type: corev1.LoadBalancerPortsError, Status: metav1.ConditionTrue, Message: "port 80/TCP is used"}}
	o.FrontendServices = map[string]*corev1.Service{SharedFrontend: svc}
	conditions := Translate(o).Status.Gateways[name].Conditions
	if !strings.Contains(conditions[1].Message, "port 80/TCP is used") {
		t.Errorf("the message %q does not contain the problem of the Service", conditions[1].Message)
	}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}, {Hostname: "lb.example.com"}}
	status := Translate(o).Status.Gateways[name]
	if got, want := text(status.Conditions), "Accepted=True/Accepted Programmed=True/Programmed"; got != want {
		t.Errorf("with a Service: %q, want %q", got, want)
	}
	if len(status.Addresses) != 2 || status.Addresses[0].Value != "192.0.2.1" || *status.Addresses[1].Type != gatewayv1.HostnameAddressType {
		t.Errorf("addresses %+v", status.Addresses)
	}
	if got := text(status.Listeners[0].Conditions); !strings.Contains(got, "Programmed=True/Programmed") {
		t.Errorf("listener: %q", got)
	}
}

// TestListenerSets checks that ListenerSets need permission, and that routes attach to their listeners.
func TestListenerSets(t *testing.T) {
	set := "kind: ListenerSet\nmetadata: {name: set}\nspec:\n  parentRef: {name: gw}\n  listeners: [{name: x, port: 80, protocol: HTTP, hostname: set.example.com}, {name: conflict, port: 80, protocol: HTTP}]\n---\n" +
		"kind: HTTPRoute\nmetadata: {name: r}\nspec: {parentRefs: [{kind: ListenerSet, group: gateway.networking.k8s.io, name: set}], rules: [{backendRefs: [{name: web, port: 80}]}]}\n"
	name := types.NamespacedName{Namespace: "apps", Name: "set"}
	r := Translate(objects(t, gatewayYAML+set))
	if got, want := text(r.Status.ListenerSets[name].Conditions), "Accepted=False/NotAllowed Programmed=False/NotAllowed"; got != want {
		t.Errorf("not allowed: %q, want %q", got, want)
	}
	r = Translate(objects(t, strings.Replace(gatewayYAML, "  listeners:", "  allowedListeners: {namespaces: {from: Same}}\n  listeners:", 1)+set))
	status := r.Status.ListenerSets[name]
	if got, want := text(status.Conditions), "Accepted=True/ListenersNotValid Programmed=False/Pending"; got != want {
		t.Errorf("allowed: %q, want %q", got, want)
	}
	if status.Listeners[0].AttachedRoutes != 1 || status.Listeners[1].AttachedRoutes != 0 {
		t.Errorf("listeners %+v", status.Listeners)
	}
	if got := text(status.Listeners[1].Conditions); !strings.Contains(got, "Conflicted=True/HostnameConflict") {
		t.Errorf("conflicting listener: %s", got)
	}
	if n := *r.Status.Gateways[types.NamespacedName{Namespace: "apps", Name: "gw"}].AttachedListenerSets; n != 1 {
		t.Errorf("%d attached ListenerSets", n)
	}
	unresolved := strings.Replace(strings.Replace(gatewayYAML, "  listeners:", "  allowedListeners: {namespaces: {from: Same}}\n  listeners:", 1)+set, "port: 80, protocol: HTTP, hostname: set.example.com", "port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: none}]}", 1)
	if got, want := text(Translate(objects(t, unresolved)).Status.ListenerSets[name].Conditions), "Accepted=False/ListenersNotValid Programmed=False/ListenersNotValid"; got != want {
		t.Errorf("without a certificate: %q, want %q", got, want)
	}
	p := r.Config.Ports[model.PortID{Frontend: SharedFrontend, Number: 80}]
	if len(p.Listeners) != 2 || p.Listeners[1].Hostname != "set.example.com" || len(p.Listeners[1].Routes) != 1 || len(p.Listeners[0].Routes) != 0 {
		t.Errorf("port %+v", p)
	}
}

// TestIngress checks which hosts and paths the ports of Ingresses serve.
func TestIngress(t *testing.T) {
	o := objects(t, `kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: hyperkube
  listeners: [{name: a, port: 80, protocol: HTTP, hostname: a.example.com}]
---
kind: Ingress
metadata: {name: web}
spec:
  ingressClassName: hyperkube
  tls: [{hosts: [b.example.com], secretName: cert}, {hosts: [c.example.com], secretName: none}]
  defaultBackend: {service: {name: web, port: {number: 80}}}
  rules:
  - {host: a.example.com, http: {paths: [{path: /i, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}}
  - {host: b.example.com, http: {paths: [{path: /x/, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}, {path: /e, pathType: Exact, backend: {service: {name: none, port: {number: 80}}}}]}}
---
kind: Ingress
metadata: {name: foreign}
spec:
  ingressClassName: foreign
  rules: [{host: f.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
`)
	r := Translate(o)
	var got []string
	for _, number := range []int32{80, 443} {
		for _, l := range r.Config.Ports[model.PortID{Frontend: SharedFrontend, Number: number}].Listeners {
			line := l.Name + ":"
			for _, route := range l.Routes {
				for _, rule := range route.Route.Rules {
					valid := "!"
					if rule.Backends[0].Backend != nil {
						valid = ""
					}
					line += " " + route.Hostnames[0] + rule.Matches[0].Path + valid
				}
			}
			got = append(got, line)
		}
	}
	want := []string{
		"apps/gw/a: a.example.com/i",
		"Ingress/80/: b.example.com/x b.example.com/e! ",
		"Ingress/443/b.example.com: b.example.com/x b.example.com/e! ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	name := types.NamespacedName{Namespace: "apps", Name: "web"}
	if problems := strings.Join(r.Status.IngressProblems[name], "\n"); !strings.Contains(problems, "Secret none") || !strings.Contains(problems, "Service apps/none does not exist") {
		t.Errorf("problems %q", problems)
	}
	if _, ok := r.Status.Ingresses[types.NamespacedName{Namespace: "apps", Name: "foreign"}]; ok {
		t.Error("an Ingress of another class has a status")
	}
}

// TestL4Routes checks that TCP, UDP and TLS routes are attached to listeners of their protocol.
func TestL4Routes(t *testing.T) {
	r := Translate(objects(t, `kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: hyperkube
  listeners:
  - {name: tcp, port: 53, protocol: TCP}
  - {name: udp, port: 53, protocol: UDP}
  - {name: tls, port: 443, protocol: TLS, hostname: "*.example.com", tls: {mode: Passthrough}}
---
kind: TCPRoute
metadata: {name: t}
spec: {parentRefs: [{name: gw}], rules: [{backendRefs: [{name: web, port: 80}]}]}
---
kind: UDPRoute
metadata: {name: u}
spec: {parentRefs: [{name: gw, sectionName: udp}], rules: [{backendRefs: [{name: web, port: 53}]}]}
---
kind: TLSRoute
metadata: {name: s}
spec: {parentRefs: [{name: gw}], hostnames: [a.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]}
`))
	for id, want := range map[model.PortID]string{
		{Frontend: SharedFrontend, Number: 53}: "TCPRoute/apps/t ", {Frontend: SharedFrontend, Number: 53, UDP: true}: "UDPRoute/apps/u ",
		{Frontend: SharedFrontend, Number: 443}: "TLSRoute/apps/s a.example.com",
	} {
		p := r.Config.Ports[id]
		if p == nil || len(p.Listeners[0].Forwards) != 1 {
			t.Errorf("port %v: %+v", id, p)
			continue
		}
		if f := p.Listeners[0].Forwards[0]; f.Name+" "+f.Hostnames[0] != want || f.Backends[0].Backend == nil {
			t.Errorf("port %v: %+v", id, f)
		}
	}
}

func TestIntersectHostnames(t *testing.T) {
	for _, test := range []struct {
		listener string
		route    []string
		want     string
	}{
		{"", nil, `""`},
		{"a.b", nil, `"a.b"`},
		{"", []string{"a.b", "*.c"}, `"*.c" "a.b"`},
		{"*.b", []string{"a.b", "b", "x.y.b", "a.c"}, `"a.b" "x.y.b"`},
		{"a.b", []string{"*.b", "a.b"}, `"a.b"`},
		{"*.x.b", []string{"*.b"}, `"*.x.b"`},
		{"*.b", []string{"*.x.b"}, `"*.x.b"`},
		{"a.b", []string{"c.b"}, ""},
	} {
		var got []string
		for _, h := range intersectHostnames(test.listener, test.route) {
			got = append(got, `"`+h+`"`)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%q with %q: %v, want %s", test.listener, test.route, got, test.want)
		}
	}
}
