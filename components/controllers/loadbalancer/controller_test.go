package loadbalancer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/controltest"
)

var services = corev1.SchemeGroupVersion.WithKind("Service")

// service returns a Service of type LoadBalancer. Services with a higher age are older.
func service(name string, age int, changes ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(controltest.Now.Add(-time.Duration(age) * time.Minute))},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, change := range changes {
		change(svc)
	}
	return svc
}

func withPorts(ports ...corev1.ServicePort) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports = ports }
}

func withFamilies(f ...corev1.IPFamily) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.IPFamilies = f }
}

func local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

// assignedTo gives a Service the finalizer and addresses of an earlier sync.
func assignedTo(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Finalizers = []string{finalizer}
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)})
		}
	}
}

func node(name string, ready bool, ips ...string) *corev1.Node {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}}
	for _, ip := range ips {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return n
}

func labeled(n *corev1.Node, label string) *corev1.Node {
	n.Labels = map[string]string{label: ""}
	return n
}

func endpointsOn(svc, node string, ready bool) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: svc + "-" + node, Labels: map[string]string{discoveryv1.LabelServiceName: svc}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
}

// fixture is a controller with a fake API server.
type fixture struct {
	*controltest.Fixture
	*testing.T
	c *Controller
}

func newFixture(t *testing.T, objs ...runtime.Object) *fixture {
	t.Helper()
	f := &fixture{T: t, Fixture: controltest.New(t)}
	var err error
	if f.c, err = New(f.Env, Config{Reserved: ComponentPorts()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.c.Close)
	for _, o := range objs {
		f.Add(o)
	}
	return f
}

// sync syncs Services like workers, and returns the Services in the API server by name.
func (f *fixture) sync(names ...string) map[string]*corev1.Service {
	f.Helper()
	for _, name := range names {
		f.Observe(services)
		if err := controltest.Sync(f.T, f.c.Loop, "default/"+name); err != nil {
			f.Fatal(err)
		}
	}
	f.Observe(services)
	list, err := f.Kube.CoreV1().Services("default").List(f.Context(), metav1.ListOptions{})
	if err != nil {
		f.Fatal(err)
	}
	out := map[string]*corev1.Service{}
	for i := range list.Items {
		out[list.Items[i].Name] = &list.Items[i]
	}
	return out
}

// ips returns the addresses of a Service.
func ips(svc *corev1.Service) string {
	var out []string
	for _, i := range svc.Status.LoadBalancer.Ingress {
		out = append(out, i.IP)
	}
	return strings.Join(out, " ")
}

func TestAddresses(t *testing.T) {
	four, six := corev1.IPv4Protocol, corev1.IPv6Protocol
	for name, test := range map[string]struct {
		svc  *corev1.Service
		objs []runtime.Object
		want string
	}{
		"one node":             {service("a", 1), []runtime.Object{node("n1", true, "192.0.2.1")}, "192.0.2.1"},
		"sorted nodes":         {service("a", 1), []runtime.Object{node("n1", true, "192.0.2.10"), node("n2", true, "192.0.2.9")}, "192.0.2.9 192.0.2.10"},
		"without nodes":        {service("a", 1), nil, ""},
		"ready nodes only":     {service("a", 1), []runtime.Object{node("n1", false, "192.0.2.1"), node("n2", true, "192.0.2.2")}, "192.0.2.2"},
		"no ready node":        {service("a", 1), []runtime.Object{node("n1", false, "192.0.2.1")}, "192.0.2.1"},
		"excluded node":        {service("a", 1), []runtime.Object{labeled(node("n1", true, "192.0.2.1"), corev1.LabelNodeExcludeBalancers), node("n2", true, "192.0.2.2")}, "192.0.2.2"},
		"only excluded nodes":  {service("a", 1), []runtime.Object{labeled(node("n1", true, "192.0.2.1"), corev1.LabelNodeExcludeBalancers)}, ""},
		"another family":       {service("a", 1, withFamilies(six)), []runtime.Object{node("n1", true, "192.0.2.1", "2001:db8::1")}, "2001:db8::1"},
		"both families":        {service("a", 1, withFamilies(six, four)), []runtime.Object{node("n1", true, "192.0.2.1", "2001:db8::1")}, "2001:db8::1 192.0.2.1"},
		"local":                {service("a", 1, local), []runtime.Object{node("n1", true, "192.0.2.1"), node("n2", true, "192.0.2.2"), endpointsOn("a", "n2", true)}, "192.0.2.2"},
		"local, not ready":     {service("a", 1, local), []runtime.Object{node("n1", true, "192.0.2.1"), node("n2", true, "192.0.2.2"), endpointsOn("a", "n1", true), endpointsOn("a", "n2", false)}, "192.0.2.1"},
		"local, no endpoints":  {service("a", 1, local), []runtime.Object{node("n1", true, "192.0.2.1")}, "192.0.2.1"},
		"local, other Service": {service("a", 1, local), []runtime.Object{node("n1", true, "192.0.2.1"), node("n2", true, "192.0.2.2"), endpointsOn("b", "n2", true), endpointsOn("a", "n1", true)}, "192.0.2.1"},
		"changed nodes":        {service("a", 1, assignedTo("192.0.2.7")), []runtime.Object{node("n1", true, "192.0.2.1")}, "192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, append(test.objs, test.svc)...)
			svc := f.sync("a")["a"]
			if got := ips(svc); got != test.want {
				t.Errorf("addresses %q, want %q", got, test.want)
			}
			if !slices.Equal(svc.Finalizers, []string{finalizer}) {
				t.Errorf("finalizers %v", svc.Finalizers)
			}
			f.Writes()
			f.sync("a")
			if writes := f.Writes(); len(writes) > 0 {
				t.Errorf("another sync writes %v", writes)
			}
		})
	}
}

// TestOthers checks that Services of other types, with a class, or with addresses of another load balancer stay as
// they are.
func TestOthers(t *testing.T) {
	foreign := service("foreign", 1)
	foreign.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	f := newFixture(t, node("n1", true, "192.0.2.1"), foreign,
		service("class", 1, func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/lb") }),
		service("clusterip", 1, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }),
		service("nodeport", 1, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }),
	)
	f.sync("foreign", "class", "clusterip", "nodeport", "absent")
	if writes := f.Writes(); len(writes) > 0 {
		t.Errorf("writes %v", writes)
	}
	// Their ports are free.
	f.Add(service("a", 0))
	if got := ips(f.sync("a")["a"]); got != "192.0.2.1" {
		t.Errorf("addresses %q", got)
	}
}

// TestConflict checks that the older Service keeps a port, that the other one is pending with a condition and an event,
// and that it gets its addresses when the port is free.
func TestConflict(t *testing.T) {
	f := newFixture(t, node("n1", true, "192.0.2.1"), service("old", 2), service("new", 1))
	all := f.sync("new", "old")
	if ips(all["old"]) != "192.0.2.1" || ips(all["new"]) != "" {
		t.Errorf("addresses: old %q, new %q", ips(all["old"]), ips(all["new"]))
	}
	c := meta.FindStatusCondition(all["new"].Status.Conditions, corev1.LoadBalancerPortsError)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != reasonPortConflict || c.Message != "port 80/TCP is used by Service default/old" {
		t.Errorf("condition %v", c)
	}
	events := f.Recorded()
	if controltest.Count(events, "Warning SyncLoadBalancerFailed Error syncing load balancer: port 80/TCP is used by Service default/old") != 1 || controltest.Count(events, "Normal EnsuredLoadBalancer") != 1 {
		t.Errorf("events %q", events)
	}
	if err := f.Kube.CoreV1().Services("default").Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	svc := f.sync("new")["new"]
	c = meta.FindStatusCondition(svc.Status.Conditions, corev1.LoadBalancerPortsError)
	if ips(svc) != "192.0.2.1" || c == nil || c.Status != metav1.ConditionFalse {
		t.Errorf("addresses %q, condition %v", ips(svc), c)
	}
}

// TestReservedPorts checks that no Service takes over the port of a component.
func TestReservedPorts(t *testing.T) {
	f := newFixture(t, node("n1", true, "192.0.2.1"), service("a", 1, withPorts(corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 6443})),
		service("b", 1, withPorts(corev1.ServicePort{Protocol: corev1.ProtocolUDP, Port: 6443})))
	all := f.sync("a", "b")
	c := meta.FindStatusCondition(all["a"].Status.Conditions, corev1.LoadBalancerPortsError)
	if ips(all["a"]) != "" || c == nil || c.Message != "port 6443/TCP is used by a component of the cluster" {
		t.Errorf("addresses %q, condition %v", ips(all["a"]), c)
	}
	if ips(all["b"]) != "192.0.2.1" {
		t.Errorf("a port of another protocol: addresses %q", ips(all["b"]))
	}
}

// TestRelease checks that the addresses and the finalizer are removed when the Service is deleted or has another type.
func TestRelease(t *testing.T) {
	for name, change := range map[string]func(*corev1.Service){
		"deleted":      func(s *corev1.Service) { s.DeletionTimestamp = ptr.To(metav1.NewTime(controltest.Now)) },
		"another type": func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, node("n1", true, "192.0.2.1"), service("a", 1, assignedTo("192.0.2.1"), change, func(s *corev1.Service) { s.Finalizers = append(s.Finalizers, "example.com/other") }))
			svc := f.sync("a")["a"]
			if ips(svc) != "" || !slices.Equal(svc.Finalizers, []string{"example.com/other"}) {
				t.Errorf("addresses %q, finalizers %v", ips(svc), svc.Finalizers)
			}
			if events := f.Recorded(); controltest.Count(events, "Normal DeletedLoadBalancer") != 1 {
				t.Errorf("events %q", events)
			}
		})
	}
}

// TestRandomConflicts checks with random Services and random orders of syncs that in the end no two Services
// with addresses share a port, and that each Service without addresses shares one with an older Service.
func TestRandomConflicts(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		f := newFixture(t, node("n1", true, "192.0.2.1"))
		var all []*corev1.Service
		for i := range 8 {
			var ports []corev1.ServicePort
			for _, number := range random.Perm(5)[:1+random.IntN(2)] {
				ports = append(ports, corev1.ServicePort{Protocol: []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}[random.IntN(2)], Port: int32(80 + number)})
			}
			svc := service(fmt.Sprint("s", i), random.IntN(4), withPorts(ports...))
			all = append(all, svc)
			f.Add(svc)
		}
		for range 2 {
			for _, i := range random.Perm(len(all)) {
				f.sync(all[i].Name)
			}
		}
		now := f.sync()
		for _, a := range all {
			older := slices.ContainsFunc(all, func(b *corev1.Service) bool {
				return precedes(b, a) && slices.ContainsFunc(portsOf(a), func(p Port) bool { return slices.Contains(portsOf(b), p) })
			})
			if has := ips(now[a.Name]) != ""; has == older {
				t.Fatalf("seed %d: Service %s with ports %v: has addresses %v, an older Service has a port: %v", seed, a.Name, portsOf(a), has, older)
			}
		}
	}
}
