package serviceip

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"hyperkube/internal/store"
	"hyperkube/internal/testing/testetcd"
)

func TestAddressesFollowTheirService(t *testing.T) {
	c := newCluster(t, testetcd.Client(t), utilnet.PortRange{}, "10.96.0.0/16")
	svc := c.mustCreate(service("web", corev1.ServiceTypeClusterIP))
	if svc.Spec.ClusterIP == "" || svc.Spec.ClusterIPs[0] != svc.Spec.ClusterIP {
		t.Fatalf("clusterIP %q, clusterIPs %q", svc.Spec.ClusterIP, svc.Spec.ClusterIPs)
	}
	if *svc.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack || len(svc.Spec.IPFamilies) != 1 {
		t.Errorf("policy %v, families %v", *svc.Spec.IPFamilyPolicy, svc.Spec.IPFamilies)
	}
	if got := c.names(); len(got) != 1 || got[0] != svc.Spec.ClusterIP {
		t.Errorf("addresses %v", got)
	}
	e, err := c.addresses.Get(t.Context(), svc.Spec.ClusterIP, -1)
	if err != nil {
		t.Fatal(err)
	}
	address, err := e.Object()
	if err != nil {
		t.Fatal(err)
	}
	if by := address.(*networkingv1.IPAddress).ManagedFields; len(by) != 1 || by[0].Manager != "kube-apiserver" {
		t.Errorf("an address belongs to %v", by)
	}
	_, err = c.create(with(service("two", corev1.ServiceTypeClusterIP), func(s *corev1.ServiceSpec) {
		s.ClusterIP, s.ClusterIPs = svc.Spec.ClusterIP, []string{svc.Spec.ClusterIP}
	}))
	wantError(t, err, "failed to allocate IP "+svc.Spec.ClusterIP+": provided IP is already allocated")
	wantError(t, err, "spec.clusterIPs")

	if svc, err = c.update("web", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = "", nil, nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := c.names(); len(got) != 0 {
		t.Errorf("addresses %v after the change to ExternalName", got)
	}
	svc, err = c.update("web", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeClusterIP, ""
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.names(); len(got) != 1 || got[0] != svc.Spec.ClusterIP {
		t.Errorf("addresses %v after the change back, service has %q", got, svc.Spec.ClusterIP)
	}
	c.delete("web")
	if got := c.names(); len(got) != 0 {
		t.Errorf("addresses %v after the deletion", got)
	}
	// The address can be reused immediately, even if the cache is outdated.
	c.mustCreate(with(service("web", corev1.ServiceTypeClusterIP), func(s *corev1.ServiceSpec) {
		s.ClusterIP, s.ClusterIPs = svc.Spec.ClusterIP, []string{svc.Spec.ClusterIP}
	}))
}

func TestUnavailableAddresses(t *testing.T) {
	c := newCluster(t, testetcd.Client(t), utilnet.PortRange{}, "10.96.0.0/28")
	for _, test := range []struct{ ip, want string }{
		{"10.97.0.1", "failed to allocate IP 10.97.0.1: the provided network does not match the current range"},
		{"10.96.0.0", "the provided IP (10.96.0.0) is not in the valid range. The range of valid IPs is 10.96.0.0/28"},
		{"10.96.0.15", "the provided IP (10.96.0.15) is not in the valid range"},
		{"fd00::1", "IPv6 is not configured on this cluster"},
	} {
		_, err := c.create(with(service("x", corev1.ServiceTypeClusterIP), func(s *corev1.ServiceSpec) {
			s.ClusterIP, s.ClusterIPs = test.ip, []string{test.ip}
		}))
		wantError(t, err, test.want)
	}
	_, err := c.create(with(service("x", corev1.ServiceTypeClusterIP), func(s *corev1.ServiceSpec) {
		s.IPFamilyPolicy = ptr(corev1.IPFamilyPolicyRequireDualStack)
	}))
	wantError(t, err, "this cluster is not configured for dual-stack services")
	for i := range 14 {
		c.mustCreate(service(fmt.Sprint("s", i), corev1.ServiceTypeClusterIP))
	}
	_, err = c.create(service("x", corev1.ServiceTypeClusterIP))
	wantError(t, err, "failed to allocate a serviceIP: range is full")
}

func TestHeadlessServicesHaveNoAddress(t *testing.T) {
	c := newCluster(t, testetcd.Client(t), utilnet.PortRange{}, "10.96.0.0/16")
	none := func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = "None", []string{"None"} }
	svc := c.mustCreate(with(service("a", corev1.ServiceTypeClusterIP), none))
	if *svc.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack || len(svc.Spec.IPFamilies) != 1 {
		t.Errorf("with a selector: %v %v", *svc.Spec.IPFamilyPolicy, svc.Spec.IPFamilies)
	}
	bare := with(service("b", corev1.ServiceTypeClusterIP), none)
	bare.Spec.Selector = nil
	svc = c.mustCreate(bare)
	if *svc.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyRequireDualStack || len(svc.Spec.IPFamilies) != 2 {
		t.Errorf("without a selector: %v %v", *svc.Spec.IPFamilyPolicy, svc.Spec.IPFamilies)
	}
	if got := c.names(); len(got) != 0 {
		t.Errorf("addresses %v", got)
	}
}

func TestDualStack(t *testing.T) {
	c := newCluster(t, testetcd.Client(t), utilnet.PortRange{}, "10.96.0.0/16", "fd00:96::/108")
	svc := c.mustCreate(service("web", corev1.ServiceTypeClusterIP))
	if len(svc.Spec.ClusterIPs) != 1 {
		t.Fatalf("by default %v", svc.Spec.ClusterIPs)
	}
	svc, err := c.update("web", func(s *corev1.Service) { s.Spec.IPFamilyPolicy = ptr(corev1.IPFamilyPolicyPreferDualStack) })
	if err != nil {
		t.Fatal(err)
	}
	if got := c.names(); len(got) != 2 || len(svc.Spec.ClusterIPs) != 2 {
		t.Fatalf("addresses %v, service %v", got, svc.Spec.ClusterIPs)
	}
	_, err = c.update("web", func(s *corev1.Service) { s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1] })
	wantError(t, err, "must be 'SingleStack' to release the secondary cluster IP")
	if svc, err = c.update("web", func(s *corev1.Service) { s.Spec.IPFamilyPolicy = ptr(corev1.IPFamilyPolicySingleStack) }); err != nil {
		t.Fatal(err)
	}
	if got := c.names(); len(got) != 1 || got[0] != svc.Spec.ClusterIPs[0] || len(svc.Spec.IPFamilies) != 1 {
		t.Fatalf("addresses %v, service %v", got, svc.Spec.ClusterIPs)
	}
	svc = c.mustCreate(with(service("six", corev1.ServiceTypeClusterIP), func(s *corev1.ServiceSpec) {
		s.IPFamilyPolicy = ptr(corev1.IPFamilyPolicyRequireDualStack)
		s.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	}))
	if len(svc.Spec.ClusterIPs) != 2 || !strings.HasPrefix(svc.Spec.ClusterIP, "fd00:96::") {
		t.Errorf("IPv6 first: %v", svc.Spec.ClusterIPs)
	}
	_, err = c.create(with(service("x", corev1.ServiceTypeClusterIP), func(s *corev1.ServiceSpec) {
		s.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}))
	wantError(t, err, "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified")
	c.delete("six")
	c.delete("web")
	if got := c.names(); len(got) != 0 {
		t.Errorf("addresses %v after the deletions", got)
	}
}

// TestDualStackOfOneWithoutAddress uses a Service that was written directly to etcd and lacks
// fields that the API server always sets.
func TestDualStackOfOneWithoutAddress(t *testing.T) {
	c := newCluster(t, testetcd.Client(t), utilnet.PortRange{}, "10.96.0.0/16", "fd00:96::/108")
	bare := with(service("bare", corev1.ServiceTypeClusterIP), func(s *corev1.ServiceSpec) {
		s.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		s.IPFamilyPolicy = ptr(corev1.IPFamilyPolicySingleStack)
	})
	if _, _, err := c.store.Commit(t.Context(), c.services.Create("default/bare", bare, 0)); err != nil {
		t.Fatal(err)
	}
	svc, err := c.update("bare", func(s *corev1.Service) { s.Spec.IPFamilyPolicy = ptr(corev1.IPFamilyPolicyRequireDualStack) })
	if err != nil {
		t.Fatal(err)
	}
	if got := c.names(); len(got) != 2 || len(svc.Spec.ClusterIPs) != 2 || svc.Spec.ClusterIP != svc.Spec.ClusterIPs[0] {
		t.Errorf("addresses %v, service %v", got, svc.Spec.ClusterIPs)
	}
}

func TestNodePorts(t *testing.T) {
	c := newCluster(t, testetcd.Client(t), utilnet.PortRange{}, "10.96.0.0/16")
	dns := c.mustCreate(service("dns", corev1.ServiceTypeNodePort,
		corev1.ServicePort{Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP},
		corev1.ServicePort{Name: "tcp", Port: 53, Protocol: corev1.ProtocolTCP},
		corev1.ServicePort{Name: "metrics", Port: 9153, Protocol: corev1.ProtocolTCP, NodePort: 30001}))
	p := dns.Spec.Ports
	if p[0].NodePort < 30086 || p[1].NodePort != p[0].NodePort || p[2].NodePort != 30001 {
		t.Errorf("ports %v", p)
	}
	if got := c.usedPorts(); len(got) != 2 {
		t.Errorf("used %v", got)
	}
	_, err := c.create(service("two", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30001, Protocol: corev1.ProtocolTCP}))
	wantError(t, err, "spec.ports[0].nodePort: Invalid value: 30001: provided port is already allocated")
	_, err = c.create(service("two", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 80, Protocol: corev1.ProtocolTCP}))
	wantError(t, err, "provided port is not in the valid range. The range of valid ports is 30000-32767")

	if _, err := c.update("dns", func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:2] }); err != nil {
		t.Fatal(err)
	}
	if got := c.usedPorts(); len(got) != 1 {
		t.Errorf("used %v after one entry went", got)
	}
	c.mustCreate(service("two", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30001, Protocol: corev1.ProtocolTCP}))
	local := func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	}
	lb, err := c.update("two", local)
	if err != nil {
		t.Fatal(err)
	}
	if lb.Spec.HealthCheckNodePort == 0 {
		t.Error("no port for health checks")
	}
	if got := c.usedPorts(); len(got) != 3 {
		t.Errorf("used %v with a health check", got)
	}
	if lb, err = c.update("two", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster }); err != nil {
		t.Fatal(err)
	}
	if lb.Spec.HealthCheckNodePort != 0 {
		t.Errorf("health check port %d stays", lb.Spec.HealthCheckNodePort)
	}
	if _, err := c.update("two", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeClusterIP
		s.Spec.Ports[0].NodePort = 0
	}); err != nil {
		t.Fatal(err)
	}
	c.delete("dns")
	if got := c.usedPorts(); len(got) != 0 {
		t.Errorf("used %v in the end", got)
	}
}

// TestChangedNodePorts checks that a changed Service keeps its ports, gets the ports that it
// requests, and allocates a port that two protocols share only once.
func TestChangedNodePorts(t *testing.T) {
	c := newCluster(t, testetcd.Client(t), utilnet.PortRange{}, "10.96.0.0/16")
	c.mustCreate(service("other", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30005, Protocol: corev1.ProtocolTCP}))
	c.mustCreate(service("web", corev1.ServiceTypeNodePort, corev1.ServicePort{Name: "a", Port: 80, NodePort: 30001, Protocol: corev1.ProtocolTCP}))
	change := func(ports ...corev1.ServicePort) (*corev1.Service, error) {
		return c.update("web", func(s *corev1.Service) { s.Spec.Ports = ports })
	}
	a := corev1.ServicePort{Name: "a", Port: 80, NodePort: 30001, Protocol: corev1.ProtocolTCP}
	tcp := corev1.ServicePort{Name: "tcp", Port: 53, NodePort: 30002, Protocol: corev1.ProtocolTCP}
	udp := corev1.ServicePort{Name: "udp", Port: 53, NodePort: 30002, Protocol: corev1.ProtocolUDP}
	if _, err := change(a, tcp, udp); err != nil {
		t.Fatal(err)
	}
	if got := c.usedPorts(); !slices.Equal(got, []int{30001, 30002, 30005}) {
		t.Errorf("used %v", got)
	}
	_, err := change(a, tcp, udp, corev1.ServicePort{Name: "b", Port: 81, NodePort: 30005, Protocol: corev1.ProtocolTCP})
	wantError(t, err, "spec.ports[3].nodePort: Invalid value: 30005: provided port is already allocated")
	_, err = change(a, tcp, corev1.ServicePort{Name: "b", Port: 81, NodePort: 30009, Protocol: corev1.ProtocolTCP}, corev1.ServicePort{Name: "c", Port: 82, NodePort: 30009, Protocol: corev1.ProtocolTCP})
	wantError(t, err, "spec.ports[3].nodePort: Invalid value: 30009: duplicate nodePort: {TCP 30009}")
	if got := c.usedPorts(); !slices.Equal(got, []int{30001, 30002, 30005}) {
		t.Errorf("used %v after changes that were refused", got)
	}
	got, err := change(a, corev1.ServicePort{Name: "b", Port: 81, Protocol: corev1.ProtocolTCP})
	if err != nil {
		t.Fatal(err)
	}
	chosen := got.Spec.Ports[1].NodePort
	if got.Spec.Ports[0].NodePort != 30001 || chosen < 30000 || chosen == 30001 || chosen == 30005 {
		t.Errorf("ports %v", got.Spec.Ports)
	}
	want := []int{30001, 30005, int(chosen)}
	slices.Sort(want)
	if used := c.usedPorts(); !slices.Equal(used, want) {
		t.Errorf("used %v, want %v", used, want)
	}
}

func TestConcurrentAllocations(t *testing.T) {
	client := testetcd.Client(t)
	ports := utilnet.PortRange{Base: 30000, Size: 200}
	// Two API servers that share an etcd.
	servers := []*cluster{
		newCluster(t, client, ports, "10.96.0.0/24", "fd00::/120"),
		newCluster(t, client, ports, "10.96.0.0/24", "fd00::/120"),
	}
	const n = 200
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			svc := service(fmt.Sprint("s", i), corev1.ServiceTypeNodePort)
			svc.Spec.IPFamilyPolicy = ptr(corev1.IPFamilyPolicyRequireDualStack)
			if _, err := servers[i%2].create(svc); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	page, err := servers[0].services.List(t.Context(), store.ListOptions{Revision: -1})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, e := range page.Entries {
		obj, err := e.Object()
		if err != nil {
			t.Fatal(err)
		}
		svc := obj.(*corev1.Service)
		for _, thing := range append(svc.Spec.ClusterIPs, fmt.Sprint(svc.Spec.Ports[0].NodePort)) {
			if other := seen[thing]; other != "" {
				t.Errorf("%s and %s have %s", other, svc.Name, thing)
			}
			seen[thing] = svc.Name
		}
	}
	if len(seen) != 3*n {
		t.Errorf("%d things in use, want %d", len(seen), 3*n)
	}
	if got := len(servers[1].names()); got != 2*n {
		t.Errorf("%d addresses, want %d", got, 2*n)
	}
	if got := len(servers[1].usedPorts()); got != n {
		t.Errorf("%d ports, want %d", got, n)
	}
	_, err = servers[0].create(service("one-more", corev1.ServiceTypeNodePort))
	wantError(t, err, "failed to allocate a nodePort: range is full")
}

// TestInterruptedCreation interrupts the creation of Services at arbitrary points. Without repair,
// each Service must have its own addresses and port, and there must be no other allocations.
func TestInterruptedCreation(t *testing.T) {
	client := testetcd.Client(t)
	ports := utilnet.PortRange{Base: 30000, Size: 400}
	servers := []*cluster{
		newCluster(t, client, ports, "10.96.0.0/23", "fd00::/119"),
		newCluster(t, client, ports, "10.96.0.0/23", "fd00::/119"),
	}
	var all sync.WaitGroup
	var made atomic.Int64
	for i := range 300 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.N(1500))*time.Millisecond)
			defer cancel()
			svc := service(fmt.Sprint("s", i), corev1.ServiceTypeNodePort)
			svc.Spec.IPFamilyPolicy = ptr(corev1.IPFamilyPolicyRequireDualStack)
			if _, err := servers[i%2].writeUntil(ctx, "default/"+svc.Name, func(*corev1.Service) *corev1.Service { return svc.DeepCopy() }); err == nil {
				made.Add(1)
			}
		})
	}
	all.Wait()
	next := newCluster(t, client, ports, "10.96.0.0/23", "fd00::/119")
	page, err := next.services.List(t.Context(), store.ListOptions{Revision: -1})
	if err != nil {
		t.Fatal(err)
	}
	if n := int64(len(page.Entries)); n < made.Load() {
		t.Errorf("%d services, of %d that were made", n, made.Load())
	}
	var addresses []string
	var taken []int
	for _, e := range page.Entries {
		obj, err := e.Object()
		if err != nil {
			t.Fatal(err)
		}
		spec := obj.(*corev1.Service).Spec
		addresses = append(addresses, spec.ClusterIPs...)
		taken = append(taken, int(spec.Ports[0].NodePort))
	}
	slices.Sort(addresses)
	slices.Sort(taken)
	if got := next.names(); !slices.Equal(got, addresses) {
		t.Errorf("addresses %q\nservices have %q", got, addresses)
	}
	if got := next.usedPorts(); !slices.Equal(got, taken) {
		t.Errorf("ports %v\nservices have %v", got, taken)
	}
	t.Logf("%d made, %d there", made.Load(), len(page.Entries))
}

func TestRepair(t *testing.T) {
	c := newCluster(t, testetcd.Client(t), utilnet.PortRange{}, "10.96.0.0/16")
	svc := c.mustCreate(service("web", corev1.ServiceTypeNodePort))
	ctx := t.Context()
	// A leaked address and port, and a missing one.
	leaked := c.createOp(netip.MustParseAddr("10.96.9.9"), service("gone", corev1.ServiceTypeClusterIP))
	if _, _, err := c.store.Commit(ctx, leaked); err != nil {
		t.Fatal(err)
	}
	p, entry, err := c.load(ctx, -1)
	if err != nil {
		t.Fatal(err)
	}
	p.set(30007, true)
	p.set(int(svc.Spec.Ports[0].NodePort), false)
	op, err := c.storeOp(p, entry)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.store.Commit(ctx, op); err != nil {
		t.Fatal(err)
	}
	if err := c.Repair(ctx); err != nil {
		t.Fatal(err)
	}
	if got := c.names(); len(got) != 1 || got[0] != svc.Spec.ClusterIP {
		t.Errorf("addresses %v", got)
	}
	if got := c.usedPorts(); len(got) != 1 || got[0] != int(svc.Spec.Ports[0].NodePort) {
		t.Errorf("ports %v", got)
	}
	// A manually deleted address is restored.
	e, err := c.addresses.Get(ctx, svc.Spec.ClusterIP, -1)
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.addresses.Watch(ctx, store.WatchOptions{Since: e.Revision()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, _, err := c.store.Commit(ctx, c.addresses.Delete(e)); err != nil {
		t.Fatal(err)
	}
	for back := false; !back; {
		batch, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range batch.Events {
			back = back || ev.Current != nil && ev.Current.Key() == svc.Spec.ClusterIP
		}
	}
}

// TestWatchBegins checks that the watch sees all changes after its start, so that nothing is missed
// between repair and watch.
func TestWatchBegins(t *testing.T) {
	c := newCluster(t, testetcd.Client(t), utilnet.PortRange{}, "10.96.0.0/16")
	svc := c.mustCreate(service("web", corev1.ServiceTypeClusterIP))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e, err := c.addresses.Get(ctx, svc.Spec.ClusterIP, -1)
	if err != nil {
		t.Fatal(err)
	}
	begun := func() {
		if _, _, err := c.store.Commit(ctx, c.addresses.Delete(e)); err != nil {
			t.Error(err)
			cancel()
		}
	}
	gone := false
	c.watch(ctx, c.addresses, begun, func(ev store.Event) {
		if ev.Current == nil && ev.Previous.Key() == svc.Spec.ClusterIP {
			gone = true
			cancel()
		}
	})
	if !gone {
		t.Error("the deletion was not seen")
	}
}
