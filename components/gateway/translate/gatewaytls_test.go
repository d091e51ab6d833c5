package translate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/gateway/model"
)

// TestAddresses checks the conditions and addresses of a Gateway that requests addresses. Its Service has 192.0.2.1 and 192.0.2.2.
func TestAddresses(t *testing.T) {
	for _, test := range []struct{ name, addresses, want, got string }{
		{"none", "[]", "Accepted=True/Accepted Programmed=True/Programmed", "192.0.2.1 192.0.2.2"},
		{"any", "[{type: IPAddress}]", "Accepted=True/Accepted Programmed=True/Programmed", "192.0.2.1 192.0.2.2"},
		{"one", "[{value: 192.0.2.2}]", "Accepted=True/Accepted Programmed=True/Programmed", "192.0.2.2"},
		{"unavailable", "[{value: 192.0.2.2}, {value: 192.0.2.3}]", "Accepted=True/Accepted Programmed=False/AddressNotUsable", "192.0.2.2"},
		{"type", "[{type: Hostname, value: example.com}]", "Accepted=False/UnsupportedAddress Programmed=False/Invalid", "192.0.2.1 192.0.2.2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := objects(t, strings.Replace(gatewayYAML, "  listeners:", "  addresses: "+test.addresses+"\n  listeners:", 1))
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: SharedFrontend}}
			svc.Spec.Type = corev1.ServiceTypeLoadBalancer
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}, {IP: "192.0.2.2"}}
			o.FrontendServices = map[string]*corev1.Service{SharedFrontend: svc}
			status := Translate(o).Status.Gateways[types.NamespacedName{Namespace: "apps", Name: "gw"}]
			var addresses []string
			for _, a := range status.Addresses {
				addresses = append(addresses, a.Value)
			}
			if got := text(status.Conditions); got != test.want || strings.Join(addresses, " ") != test.got {
				t.Errorf("conditions %q, want %q; addresses %v, want %q", got, test.want, addresses, test.got)
			}
		})
	}
	own := strings.Replace(strings.Replace(gatewayYAML, "  listeners:", "  addresses: [{value: 192.0.2.2}]\n  listeners:", 1), "gatewayClassName: hyperkube", "gatewayClassName: own", 1)
	if f := Translate(objects(t, own)).Frontends; len(f) != 1 || len(f[0].Addresses) != 1 || f[0].Addresses[0] != "192.0.2.2" {
		t.Errorf("frontends %+v", f)
	}
}

// TestClientCertificate checks that only the Gateway with a client certificate uses it, and only for backends with TLS.
func TestClientCertificate(t *testing.T) {
	text1 := strings.ReplaceAll(gatewayYAML, "  listeners:", "  tls: {backend: {clientCertificateRef: {name: CERT}}}\n  listeners:") +
		"kind: Gateway\nmetadata: {name: plain}\nspec: {gatewayClassName: own, listeners: [{name: http, port: 80, protocol: HTTP}]}\n---\n" +
		"kind: HTTPRoute\nmetadata: {name: r}\nspec: {parentRefs: [{name: gw, sectionName: http}, {name: plain}], rules: [{backendRefs: [{name: web, port: 80}, {name: db, namespace: other, port: 80}]}]}\n---\n" +
		"kind: ReferenceGrant\nmetadata: {name: grant, namespace: other}\nspec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: apps}], to: [{group: \"\", kind: Service}]}\n---\n" +
		"kind: BackendTLSPolicy\nmetadata: {name: tls, generation: 1, uid: u}\nspec: {targetRefs: [{group: \"\", kind: Service, name: web}], validation: {hostname: web.example.com, wellKnownCACertificates: System}}\n"
	for _, test := range []struct{ ref, want string }{
		{"cert", "True/ResolvedRefs"}, {"none", "False/InvalidClientCertificateRef"}, {"malformed", "False/InvalidClientCertificateRef"},
		{"cert, namespace: other", "False/RefNotPermitted"}, {"cert, kind: ConfigMap", "False/InvalidClientCertificateRef"},
	} {
		t.Run(test.ref, func(t *testing.T) {
			o := objects(t, strings.ReplaceAll(text1, "CERT", test.ref))
			r := Translate(o)
			conditions := text(r.Status.Gateways[types.NamespacedName{Namespace: "apps", Name: "gw"}].Conditions)
			if !strings.HasSuffix(conditions, "ResolvedRefs="+test.want) || !strings.Contains(conditions, "Accepted=True/Accepted") {
				t.Errorf("conditions %q", conditions)
			}
			if got := text(r.Status.Gateways[types.NamespacedName{Namespace: "apps", Name: "plain"}].Conditions); strings.Contains(got, "ResolvedRefs") {
				t.Errorf("conditions of the Gateway without a client certificate %q", got)
			}
			backends := func(frontend string) []model.WeightedBackend {
				return r.Config.Ports[model.PortID{Frontend: frontend, Number: 80}].Listeners[0].Routes[0].Route.Rules[0].Backends
			}
			other := ""
			for id := range r.Config.Ports {
				if id.Frontend != SharedFrontend {
					other = id.Frontend
				}
			}
			ours, theirs := backends(SharedFrontend), backends(other)
			valid := test.want == "True/ResolvedRefs"
			if got := ours[0].Backend.TLS.Certificate != nil; got != valid || (ours[0].Backend.Key != theirs[0].Backend.Key) != valid {
				t.Errorf("backends %+v and %+v", ours[0].Backend, theirs[0].Backend)
			}
			if theirs[0].Backend.TLS.Certificate != nil || ours[1].Backend != theirs[1].Backend || r.Backends[ours[0].Backend.Key] != ours[0].Backend {
				t.Errorf("backends %+v and %+v", ours, theirs)
			}
		})
	}
}

// TestOverlap checks the condition of listeners with TLS whose hostnames overlap.
func TestOverlap(t *testing.T) {
	const listeners = `kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: hyperkube
  listeners:
  - {name: exact, port: 443, protocol: HTTPS, hostname: foo.example.com, tls: {certificateRefs: [{name: cert}]}}
  - {name: other, port: 443, protocol: HTTPS, hostname: foo.example.org, tls: {certificateRefs: [{name: cert}]}}
  - {name: wildcard, port: 443, protocol: HTTPS, hostname: "*.example.com", tls: {certificateRefs: [{name: cert}]}}
  - {name: port, port: 8443, protocol: HTTPS, hostname: "*.example.com", tls: {certificateRefs: [{name: cert}]}}
  - {name: plain, port: 80, protocol: HTTP, hostname: foo.example.com}
  - {name: all, port: 80, protocol: HTTP}
`
	for _, l := range Translate(objects(t, listeners)).Status.Gateways[types.NamespacedName{Namespace: "apps", Name: "gw"}].Listeners {
		want := l.Name == "exact" || l.Name == "wildcard"
		if got := strings.Contains(text(l.Conditions), "OverlappingTLSConfig=True/OverlappingHostnames"); got != want {
			t.Errorf("%s: %s", l.Name, text(l.Conditions))
		}
	}
}
