package controller

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
	"hyperkube/components/gateway/translate"
)

// slice returns an EndpointSlice with a port and endpoints.
func slice(name string, port int32, endpoints ...discoveryv1.Endpoint) any {
	return &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}
}

// at returns an endpoint.
func at(address string, ready, serving bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving}}
}

func TestEndpointsOf(t *testing.T) {
	svc := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
		{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolTCP}, {Name: "dns-udp", Port: 53, Protocol: corev1.ProtocolUDP},
	}}}
	for _, test := range []struct {
		name   string
		key    model.BackendKey
		slices []any
		want   string
	}{
		{"ready", model.BackendKey{Port: 80}, []any{slice("http", 8080, at("10.0.0.1", true, true), at("10.0.0.2", false, true)), slice("http", 8081, at("10.0.0.3", true, true))}, "10.0.0.1:8080 10.0.0.3:8081"},
		{"terminating", model.BackendKey{Port: 80}, []any{slice("http", 8080, at("10.0.0.1", false, true), at("10.0.0.2", false, false))}, "10.0.0.1:8080"},
		{"in two slices", model.BackendKey{Port: 80}, []any{slice("http", 8080, at("10.0.0.1", true, true)), slice("http", 8080, at("10.0.0.1", true, true))}, "10.0.0.1:8080"},
		{"IPv6", model.BackendKey{Port: 80}, []any{slice("http", 8080, at("fd00::1", true, true))}, "[fd00::1]:8080"},
		{"other port", model.BackendKey{Port: 80}, []any{slice("dns", 53, at("10.0.0.1", true, true))}, ""},
		{"TCP", model.BackendKey{Port: 53}, []any{slice("dns", 1053, at("10.0.0.1", true, true)), slice("dns-udp", 2053, at("10.0.0.1", true, true))}, "10.0.0.1:1053"},
		{"UDP", model.BackendKey{Port: 53, UDP: true}, []any{slice("dns", 1053, at("10.0.0.1", true, true)), slice("dns-udp", 2053, at("10.0.0.1", true, true))}, "10.0.0.1:2053"},
		{"unknown port", model.BackendKey{Port: 81}, []any{slice("", 8080, at("10.0.0.1", true, true))}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, e := range endpointsOf(svc, test.key, test.slices) {
				got = append(got, e.Address)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("endpoints %v, want %s", got, test.want)
			}
		})
	}
}

// TestDesiredService checks that a Service keeps its local ports, and that foreign labels and annotations stay.
func TestDesiredService(t *testing.T) {
	c := &Controller{cfg: Config{Namespace: "kube-system", Selector: map[string]string{"k8s-app": "gw"}}}
	next := int32(20000)
	allocate := func() (int32, error) {
		next++
		return next, nil
	}
	f := &translate.Frontend{
		Name: "gateway-x", Type: corev1.ServiceTypeLoadBalancer, Gateway: types.NamespacedName{Namespace: "apps", Name: "main"}, Labels: map[string]string{"team": "a"},
		Ports: []model.PortID{{Frontend: "gateway-x", Number: 53}, {Frontend: "gateway-x", Number: 53, UDP: true}, {Frontend: "gateway-x", Number: 80}},
	}
	owner := metav1.OwnerReference{Kind: "DaemonSet", Name: "gw"}
	first, err := c.desiredService(f, nil, owner, allocate)
	if err != nil {
		t.Fatal(err)
	}
	if !isFrontend(first) || first.Labels["team"] != "a" || first.Annotations[namespaceAnnotation] != "apps" || first.Labels[gatewayLabel] != "main" || first.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		t.Errorf("Service %+v", first)
	}
	existing := first.DeepCopy()
	existing.Annotations["other"] = "kept"
	existing.Spec.Ports = append(existing.Spec.Ports, corev1.ServicePort{Port: 90, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(20009)})
	f.Ports = append(f.Ports, model.PortID{Frontend: "gateway-x", Number: 443})
	second, err := c.desiredService(f, existing, owner, allocate)
	if err != nil {
		t.Fatal(err)
	}
	if second.Annotations["other"] != "kept" || !slices.Equal(second.Spec.Ports[:3], first.Spec.Ports) || len(second.Spec.Ports) != 4 || second.Spec.Ports[3].TargetPort.IntVal != 20004 {
		t.Errorf("updated Service %+v", second)
	}
	ports := localPorts(map[string]*corev1.Service{"gateway-x": second})
	if ports[model.PortID{Frontend: "gateway-x", Number: 53, UDP: true}] != 20002 {
		t.Errorf("local ports %v", ports)
	}
	f.Addresses = []string{"192.0.2.1", "2001:db8::1"}
	if svc, err := c.desiredService(f, existing, owner, allocate); err != nil || svc.Annotations[addressesAnnotation] != "192.0.2.1,2001:db8::1" {
		t.Errorf("Service with addresses %+v, error %v", svc, err)
	}
	f.Type = corev1.ServiceTypeClusterIP
	if svc, err := c.desiredService(f, nil, owner, allocate); err != nil || svc.Spec.ClusterIP != "192.0.2.1" || len(svc.Spec.ClusterIPs) != 2 || svc.Annotations[addressesAnnotation] != "" {
		t.Errorf("internal Service with addresses %+v, error %v", svc, err)
	}
	f.Type, f.Addresses = corev1.ServiceTypeLoadBalancer, nil
	errFull := errors.New("full")
	if _, err := c.desiredService(f, nil, owner, func() (int32, error) { return 0, errFull }); !errors.Is(err, errFull) {
		t.Errorf("without local ports: %v", err)
	}
}

// TestMergeParents checks that the statuses of other controllers and the transition times of unchanged conditions are kept.
func TestMergeParents(t *testing.T) {
	then := metav1.Unix(1000, 0)
	accepted := func(status metav1.ConditionStatus, at metav1.Time) []metav1.Condition {
		return []metav1.Condition{{Type: "Accepted", Status: status, Reason: "r", LastTransitionTime: at}}
	}
	parent := func(controller gatewayv1.GatewayController, name gatewayv1.ObjectName, conditions []metav1.Condition) gatewayv1.RouteParentStatus {
		return gatewayv1.RouteParentStatus{ControllerName: controller, ParentRef: gatewayv1.ParentReference{Name: name}, Conditions: conditions}
	}
	current := []gatewayv1.RouteParentStatus{
		parent("example.com/other", "x", accepted("True", then)),
		parent(translate.ControllerName, "same", accepted("True", then)),
		parent(translate.ControllerName, "changed", accepted("True", then)),
		parent(translate.ControllerName, "removed", accepted("True", then)),
	}
	desired := []gatewayv1.RouteParentStatus{
		parent(translate.ControllerName, "same", accepted("True", metav1.Time{})),
		parent(translate.ControllerName, "changed", accepted("False", metav1.Time{})),
	}
	got := mergeParents(current, desired)
	if len(got) != 3 || got[0].ControllerName != "example.com/other" || got[1].Conditions[0].LastTransitionTime != then || got[2].Conditions[0].LastTransitionTime == then || got[2].Conditions[0].Status != "False" {
		t.Errorf("parents %+v", got)
	}
	if hasParents(current, desired) || !hasParents(got, desired) || hasParents(got, desired[:1]) || hasParents(got[:2], desired) || !hasParents(nil, nil) {
		t.Error("hasParents does not agree with mergeParents")
	}
	if got := mergeParents(nil, nil); got != nil {
		t.Errorf("without parents: %+v", got)
	}
	if got := mergeParents(current[1:], nil); got == nil || len(got) != 0 {
		t.Errorf("without parents any more: %+v", got)
	}
}

// TestMatters checks which changes cause a translation.
func TestMatters(t *testing.T) {
	service := func(change func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		change(s)
		return s
	}
	route := func(change func(*gatewayv1.HTTPRoute)) *gatewayv1.HTTPRoute {
		r := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
		change(r)
		return r
	}
	for name, test := range map[string]struct {
		old, cur any
		want     bool
	}{
		"Service, other field": {service(func(*corev1.Service) {}), service(func(s *corev1.Service) { s.Spec.SessionAffinity = "ClientIP" }), false},
		"Service, port":        {service(func(*corev1.Service) {}), service(func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }), true},
		"own Service, status": {service(func(s *corev1.Service) { s.Labels = map[string]string{managedByLabel: managedBy} }), service(func(s *corev1.Service) {
			s.Labels = map[string]string{managedByLabel: managedBy}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		}), true},
		"route, status":     {route(func(*gatewayv1.HTTPRoute) {}), route(func(r *gatewayv1.HTTPRoute) { r.Status.Parents = []gatewayv1.RouteParentStatus{{}} }), false},
		"route, spec":       {route(func(*gatewayv1.HTTPRoute) {}), route(func(r *gatewayv1.HTTPRoute) { r.Generation = 2 }), true},
		"route, annotation": {route(func(*gatewayv1.HTTPRoute) {}), route(func(r *gatewayv1.HTTPRoute) { r.Annotations = map[string]string{"a": "b"} }), true},
		"Secret":            {&corev1.Secret{}, &corev1.Secret{}, true},
		"Namespace, label":  {&corev1.Namespace{}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}, true},
		"Namespace, status": {&corev1.Namespace{}, &corev1.Namespace{Status: corev1.NamespaceStatus{Phase: "Active"}}, false},
	} {
		if got := matters(test.old, test.cur); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
