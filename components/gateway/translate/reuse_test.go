package translate

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
)

// routesOf returns the routes of all listeners by name.
func routesOf(r *Result) map[string]*model.Route {
	out := map[string]*model.Route{}
	for _, p := range r.Config.Ports {
		for _, l := range p.Listeners {
			for _, a := range l.Routes {
				out[a.Route.Name] = a.Route
			}
		}
	}
	return out
}

const manyYAML = gatewayYAML + `kind: HTTPRoute
metadata: {name: a}
spec: {parentRefs: [{name: gw}], hostnames: [a.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]}
---
kind: HTTPRoute
metadata: {name: b}
spec: {parentRefs: [{name: gw}], rules: [{backendRefs: [{name: db, namespace: other, port: 80}]}]}
---
kind: GRPCRoute
metadata: {name: c}
spec: {parentRefs: [{name: gw}], rules: [{backendRefs: [{name: new, port: 80}, {name: web, port: 80}]}]}
---
kind: ReferenceGrant
metadata: {name: grant, namespace: other}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: apps}], to: [{group: "", kind: Service}]}
---
kind: BackendTLSPolicy
metadata: {name: tls, generation: 1, uid: u}
spec: {targetRefs: [{group: "", kind: Service, name: web}], validation: {hostname: web.example.com, wellKnownCACertificates: System}}
`

// TestReuse checks that a change compiles only the routes that it affects.
func TestReuse(t *testing.T) {
	var translator Translator
	o := objects(t, manyYAML)
	f := o.Lookup.(*fixture)
	before := translator.Translate(o)
	for _, step := range []struct {
		name   string
		change func()
		want   string // the routes that are compiled
	}{
		{"nothing", func() {}, ""},
		{"route", func() {
			o.HTTPRoutes[1] = o.HTTPRoutes[1].DeepCopy()
			o.HTTPRoutes[1].Generation++
		}, "[HTTPRoute/apps/b]"},
		{"Service", func() { f.services["other/db"] = f.services["other/db"].DeepCopy() }, "[HTTPRoute/apps/b]"},
		{"new Service", func() { f.services["apps/new"] = f.services["other/db"] }, "[GRPCRoute/apps/c]"},
		{"policy", func() {
			o.BackendPolicies[0] = o.BackendPolicies[0].DeepCopy()
			o.BackendPolicies[0].Generation++
		}, "[GRPCRoute/apps/c HTTPRoute/apps/a]"},
		{"without grant", func() { o.Grants = nil }, "[GRPCRoute/apps/c HTTPRoute/apps/a HTTPRoute/apps/b]"},
		{"other order", func() { o.HTTPRoutes[0], o.HTTPRoutes[1] = o.HTTPRoutes[1], o.HTTPRoutes[0] }, ""},
	} {
		step.change()
		after := translator.Translate(o)
		old, compiled := routesOf(&before), map[string]bool{}
		for name, r := range routesOf(&after) {
			if old[name] != r {
				compiled[name] = true
			}
		}
		got := ""
		if len(compiled) > 0 {
			got = fmt.Sprint(sortedNames(compiled))
		}
		if got != step.want {
			t.Errorf("%s: compiled %s, want %s", step.name, got, step.want)
		}
		if fresh := Translate(o); !reflect.DeepEqual(after, fresh) {
			t.Errorf("%s: result\n%+v, want\n%+v", step.name, after, fresh)
		}
		before = after
	}
}

// sortedNames returns the keys of a map in order.
func sortedNames(m map[string]bool) []string {
	var out []string
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// TestRandomReuse compares the results of a Translator with those of Translate while objects change at random.
func TestRandomReuse(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var translator Translator
	o := objects(t, manyYAML)
	f := o.Lookup.(*fixture)
	routes, grants, policies := o.HTTPRoutes, o.Grants, o.BackendPolicies
	for i := range 300 {
		switch r.IntN(6) {
		case 0:
			o.HTTPRoutes = routes[:r.IntN(len(routes)+1)]
		case 1:
			k := r.IntN(len(routes))
			routes[k] = routes[k].DeepCopy()
			routes[k].Generation++
			routes[k].Spec.Rules[0].BackendRefs[0].Port = ptr.To(gatewayv1.PortNumber(80 + r.IntN(2)))
		case 2:
			o.Grants = grants[:r.IntN(2)]
		case 3:
			o.BackendPolicies = policies[:r.IntN(2)]
		case 4:
			policies[0] = policies[0].DeepCopy()
			policies[0].Generation++
		case 5:
			svc := f.services["apps/web"].DeepCopy()
			svc.Spec.Ports[0].AppProtocol = []*string{nil, ptr.To(appProtocolH2C)}[r.IntN(2)]
			svc.Spec.Type = []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName}[r.IntN(2)]
			f.services["apps/web"] = svc
		}
		if got, want := translator.Translate(o), Translate(o); !reflect.DeepEqual(got, want) {
			t.Fatalf("step %d: result\n%+v, want\n%+v", i, got, want)
		}
	}
	o.HTTPRoutes, o.GRPCRoutes = nil, nil
	if translator.Translate(o); len(translator.routes) != 0 {
		t.Errorf("%d routes are kept", len(translator.routes))
	}
}
