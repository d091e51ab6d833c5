package loadbalancer

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/controltest"
	"hyperkube/components/controllers/loadbalancer/addresspool"
	"hyperkube/internal/pod/netannotation"
)

// newPoolFixture returns a fixture whose controller has a pool, in the notation of the flag, and has read objs.
func newPoolFixture(t *testing.T, pool string, objs ...runtime.Object) *fixture {
	t.Helper()
	f := &fixture{T: t, Fixture: controltest.New(t)}
	p, err := addresspool.Parse(strings.Split(pool, ","))
	if err != nil {
		t.Fatal(err)
	}
	if f.c, err = New(f.Env, Config{Reserved: ComponentPorts(), Pool: p}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.c.Close)
	for _, o := range objs {
		f.Add(o)
	}
	if err := f.c.claimAssigned(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

// delete deletes a Service without finalizers from the API server.
func (f *fixture) delete(name string) {
	f.Helper()
	if err := f.Kube.CoreV1().Services("default").Delete(f.Context(), name, metav1.DeleteOptions{}); err != nil {
		f.Fatal(err)
	}
}

// update changes a Service in the API server.
func (f *fixture) update(name string, change func(*corev1.Service)) {
	f.Helper()
	svc, err := f.Kube.CoreV1().Services("default").Get(f.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	change(svc)
	if _, err := f.Kube.CoreV1().Services("default").Update(f.Context(), svc, metav1.UpdateOptions{}); err != nil {
		f.Fatal(err)
	}
}

// replaceNode replaces a Node in the informer, with the event.
func (f *fixture) replaceNode(n *corev1.Node) {
	f.Helper()
	f.Cache(n)
	f.c.pool.changes.Add(1)
}

// requests makes a Service request addresses of the pool by an annotation.
func requests(ips string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations = map[string]string{"metallb.io/loadBalancerIPs": ips} }
}

// announcer returns the node that announces a Service.
func announcer(svc *corev1.Service) string { return svc.Annotations[netannotation.LoadBalancerNode] }

// addressError returns the reason of the condition if a Service gets no addresses.
func addressError(svc *corev1.Service) string {
	c := meta.FindStatusCondition(svc.Status.Conditions, conditionAddressError)
	if c == nil || c.Status != metav1.ConditionTrue {
		return ""
	}
	return c.Reason
}

func TestPoolAddresses(t *testing.T) {
	four, six := corev1.IPv4Protocol, corev1.IPv6Protocol
	const pool4, pools = "192.0.2.10-192.0.2.11", "192.0.2.10-192.0.2.11,2001:db8::10-2001:db8::11"
	policy := func(p corev1.IPFamilyPolicy) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &p }
	}
	for name, test := range map[string]struct {
		pool   string
		svc    *corev1.Service
		others []runtime.Object
		want   string
		reason string
	}{
		"first address":           {pool4, service("a", 1), nil, "192.0.2.10", ""},
		"kept address":            {pool4, service("a", 1, assignedTo("192.0.2.11")), nil, "192.0.2.11", ""},
		"address of a node":       {pool4, service("a", 1, assignedTo("192.0.2.1")), nil, "192.0.2.10", ""},
		"outside of the pool":     {pool4, service("a", 1, assignedTo("198.51.100.1")), nil, "192.0.2.10", ""},
		"used by another":         {pool4, service("a", 1), []runtime.Object{service("b", 1, assignedTo("192.0.2.10"))}, "192.0.2.11", ""},
		"shared, older":           {pool4, service("a", 2, assignedTo("192.0.2.10")), []runtime.Object{service("b", 1, assignedTo("192.0.2.10"))}, "192.0.2.10", ""},
		"shared, younger":         {pool4, service("a", 1, assignedTo("192.0.2.10")), []runtime.Object{service("b", 2, assignedTo("192.0.2.10"))}, "192.0.2.11", ""},
		"exhausted":               {"192.0.2.10-192.0.2.10", service("a", 1), []runtime.Object{service("b", 1, assignedTo("192.0.2.10"))}, "", reasonExhausted},
		"node in the pool":        {pool4, service("a", 1), []runtime.Object{node("n9", false, "192.0.2.10")}, "192.0.2.11", ""},
		"requested":               {pool4, service("a", 1, requests("192.0.2.11")), nil, "192.0.2.11", ""},
		"requested by the field":  {pool4, service("a", 1, func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.11" }), nil, "192.0.2.11", ""},
		"another one requested":   {pool4, service("a", 1, assignedTo("192.0.2.10"), requests("192.0.2.11")), nil, "192.0.2.11", ""},
		"requested, used":         {pool4, service("a", 1, requests("192.0.2.11")), []runtime.Object{service("b", 1, assignedTo("192.0.2.11"))}, "", reasonInUse},
		"requested, of a node":    {pool4, service("a", 1, requests("192.0.2.11")), []runtime.Object{node("n9", false, "192.0.2.11")}, "", reasonInUse},
		"requested, not in pool":  {pool4, service("a", 1, requests("192.0.2.12")), nil, "", reasonNotInPool},
		"requested, other family": {pools, service("a", 1, requests("2001:db8::10")), nil, "", reasonInvalidAddress},
		"requested, twice":        {pools, service("a", 1, requests("192.0.2.10,192.0.2.11")), nil, "", reasonInvalidAddress},
		"requested, no address":   {pools, service("a", 1, requests("example.com")), nil, "", reasonInvalidAddress},
		"requested, avoided":      {"192.0.2.0/24", service("a", 1, requests("192.0.2.255")), nil, "192.0.2.255", ""},
		"dual-stack":              {pools, service("a", 1, withFamilies(six, four), policy(corev1.IPFamilyPolicyRequireDualStack)), nil, "2001:db8::10 192.0.2.10", ""},
		"one of two requested":    {pools, service("a", 1, withFamilies(four, six), requests("2001:db8::11")), nil, "192.0.2.10 2001:db8::11", ""},
		"both required":           {pool4, service("a", 1, withFamilies(four, six), policy(corev1.IPFamilyPolicyRequireDualStack)), nil, "", reasonNotInPool},
		"both preferred":          {pool4, service("a", 1, withFamilies(six, four), policy(corev1.IPFamilyPolicyPreferDualStack)), nil, "192.0.2.10", ""},
		"neither":                 {"2001:db8::10", service("a", 1, policy(corev1.IPFamilyPolicyPreferDualStack)), nil, "", reasonNotInPool},
		"class":                   {pool4, service("a", 1, func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To(Class) }), nil, "192.0.2.10", ""},
		"reserved port":           {pool4, service("a", 1, withPorts(corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 6443})), nil, "192.0.2.10", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newPoolFixture(t, test.pool, append(test.others, test.svc, node("n1", true, "192.0.2.1"))...)
			svc := f.sync("a")["a"]
			if got := ips(svc); got != test.want || addressError(svc) != test.reason {
				t.Errorf("addresses %q, error %q; want %q, %q", got, addressError(svc), test.want, test.reason)
			}
			if assigned := test.want != ""; assigned != (announcer(svc) == "n1") || assigned && !slices.Equal(svc.Finalizers, []string{finalizer}) {
				t.Errorf("announced by %q, finalizers %v", announcer(svc), svc.Finalizers)
			}
			if events := f.Recorded(); test.reason != "" && controltest.Count(events, "Warning AllocationFailed Failed to allocate IP: ") != 1 {
				t.Errorf("events %q", events)
			}
			f.Writes()
			f.sync("a")
			if writes := f.Writes(); len(writes) > 0 {
				t.Errorf("another sync writes %v", writes)
			}
		})
	}
}

// TestPoolRelease checks that a pending Service gets the address of a Service that is deleted, or no longer needs it.
func TestPoolRelease(t *testing.T) {
	for name, change := range map[string]func(*corev1.Service){
		"deleted":         func(s *corev1.Service) { s.DeletionTimestamp = ptr.To(metav1.NewTime(controltest.Now)) },
		"another type":    func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP },
		"another address": requests("192.0.2.11"),
		"no finalizer":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			f := newPoolFixture(t, "192.0.2.10-192.0.2.11", node("n1", true, "192.0.2.1"),
				service("a", 3), service("b", 2, requests("192.0.2.10")))
			if all := f.sync("a", "b"); ips(all["a"]) != "192.0.2.10" || addressError(all["b"]) != reasonInUse {
				t.Fatalf("addresses %q, %q", ips(all["a"]), ips(all["b"]))
			}
			if change != nil {
				f.update("a", change)
			} else {
				f.delete("a")
			}
			f.sync("a") // enqueues b
			f.Observe(services)
			if err := f.c.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			all := f.sync()
			if ips(all["b"]) != "192.0.2.10" || addressError(all["b"]) != "" {
				t.Errorf("addresses %q, error %q", ips(all["b"]), addressError(all["b"]))
			}
			if a := all["a"]; a != nil && ips(a) == "192.0.2.10" || a != nil && name != "another address" && (announcer(a) != "" || len(a.Finalizers) > 0) {
				t.Errorf("the former owner has addresses %q, node %q, finalizers %v", ips(a), announcer(a), a.Finalizers)
			}
		})
	}
}

// TestPoolRemoved checks that Services with addresses of a pool get those of nodes when the pool is removed.
func TestPoolRemoved(t *testing.T) {
	f := newFixture(t, node("n1", true, "192.0.2.1"), service("a", 1, assignedTo("192.0.2.10"), func(s *corev1.Service) {
		s.Annotations = map[string]string{netannotation.LoadBalancerNode: "n1"}
		s.Status.Conditions = []metav1.Condition{{Type: conditionAddressError, Status: metav1.ConditionFalse}}
	}))
	svc := f.sync("a")["a"]
	if ips(svc) != "192.0.2.1" || announcer(svc) != "" || meta.FindStatusCondition(svc.Status.Conditions, conditionAddressError) != nil {
		t.Errorf("addresses %q, node %q, conditions %v", ips(svc), announcer(svc), svc.Status.Conditions)
	}
}

// TestPoolFailedWrite checks that an address is not assigned twice if a write fails, or is not observed yet.
func TestPoolFailedWrite(t *testing.T) {
	f := newPoolFixture(t, "192.0.2.10-192.0.2.12", node("n1", true, "192.0.2.1"), service("a", 2), service("b", 1))
	for _, name := range []string{"a", "b"} { // without observing the writes
		if err := controltest.Sync(t, f.c.Loop, "default/"+name); err != nil {
			t.Fatal(err)
		}
	}
	if all := f.sync(); ips(all["a"]) != "192.0.2.10" || ips(all["b"]) != "192.0.2.11" {
		t.Fatalf("addresses %q, %q", ips(all["a"]), ips(all["b"]))
	}
	// The write of the new address of a fails, so its former one is not free.
	f.update("a", requests("192.0.2.12"))
	f.Observe(services)
	fails := true
	f.Kube.PrependReactor("patch", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		return fails, nil, errors.New("the API server does not answer")
	})
	if err := controltest.Sync(t, f.c.Loop, "default/a"); err == nil {
		t.Error("no error")
	}
	fails = false
	f.Add(service("c", 0))
	if c := f.sync("c")["c"]; addressError(c) != reasonExhausted {
		t.Errorf("addresses %q, error %q", ips(c), addressError(c))
	}
	f.sync("a") // enqueues c
	if all := f.sync("c"); ips(all["a"]) != "192.0.2.12" || ips(all["c"]) != "192.0.2.10" {
		t.Errorf("after a retry: addresses %q, %q", ips(all["a"]), ips(all["c"]))
	}
}

// TestAnnouncer checks which node announces the addresses of a Service after changes of nodes and endpoints.
func TestAnnouncer(t *testing.T) {
	f := newPoolFixture(t, "192.0.2.10-192.0.2.11", node("n1", true, "192.0.2.1"), node("n2", true, "192.0.2.2"), service("a", 1))
	first := announcer(f.sync("a")["a"])
	other := map[string]string{"n1": "n2", "n2": "n1"}[first]
	if other == "" {
		t.Fatalf("announced by %q", first)
	}
	f.Recorded()
	f.replaceNode(node(first, false, "192.0.2.1"))
	if got := announcer(f.sync("a")["a"]); got != other {
		t.Errorf("a node that is not ready: announced by %q", got)
	}
	if events := f.Recorded(); controltest.Count(events, "Normal NodeAssigned Node "+other+" announces the addresses") != 1 || len(events) != 1 {
		t.Errorf("events %q", events)
	}
	f.replaceNode(node(first, true, "192.0.2.1"))
	if got := announcer(f.sync("a")["a"]); got != other {
		t.Errorf("the node is ready again: announced by %q", got)
	}
	stopping := node(other, true, "192.0.2.2")
	stopping.Annotations = map[string]string{netannotation.LoadBalancerStopping: "true"}
	f.replaceNode(stopping)
	if got := announcer(f.sync("a")["a"]); got != first {
		t.Errorf("a stopping node: announced by %q", got)
	}
	// A user cannot choose the node.
	f.update("a", func(s *corev1.Service) { s.Annotations[netannotation.LoadBalancerNode] = "n3" })
	if got := announcer(f.sync("a")["a"]); got != first {
		t.Errorf("a changed annotation: announced by %q", got)
	}
	f.replaceNode(node(other, true, "192.0.2.2"))
	f.update("a", local)
	f.Add(endpointsOn("a", other, true))
	if got := announcer(f.sync("a")["a"]); got != other {
		t.Errorf("endpoints on another node: announced by %q", got)
	}
	for _, name := range []string{"n1", "n2"} {
		f.replaceNode(labeled(node(name, true), corev1.LabelNodeExcludeBalancers))
	}
	svc := f.sync("a")["a"]
	if announcer(svc) != "" || ips(svc) != "192.0.2.10" {
		t.Errorf("no node can announce: announced by %q, addresses %q", announcer(svc), ips(svc))
	}
}

// TestExpiredLease checks that addresses move when a node does not renew its Lease, before the node lifecycle
// controller sets its condition.
func TestExpiredLease(t *testing.T) {
	f := newPoolFixture(t, "192.0.2.10-192.0.2.11", node("n1", true, "192.0.2.1"), node("n2", true, "192.0.2.2"), service("a", 1))
	renew := func(node string) {
		now := metav1.NewMicroTime(f.Clock.Now().Add(-time.Hour)) // the clock of the node is wrong
		f.c.pool.leases.observe(&coordv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
			Spec:       coordv1.LeaseSpec{RenewTime: &now, LeaseDurationSeconds: ptr.To[int32](40)},
		})
		f.c.pool.changes.Add(1)
	}
	renew("n1")
	renew("n2")
	first := announcer(f.sync("a")["a"])
	other := map[string]string{"n1": "n2", "n2": "n1"}[first]
	f.Clock.SetTime(controltest.Now.Add(39 * time.Second))
	renew(other)
	f.c.syncLease(t.Context(), first)
	if f.c.Len() != 0 || announcer(f.sync("a")["a"]) != first {
		t.Error("the address moved before the Lease expired")
	}
	f.Clock.SetTime(controltest.Now.Add(40 * time.Second))
	f.c.syncLease(t.Context(), first)
	if f.c.Len() != 1 {
		t.Errorf("%d Services are enqueued", f.c.Len())
	}
	if got := announcer(f.sync("a")["a"]); got != other {
		t.Errorf("announced by %q", got)
	}
}

// TestElect compares elections of random nodes with the conditions that they must fulfil.
func TestElect(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	half := func() bool { return random.IntN(2) == 0 }
	addresses := []netip.Addr{netip.MustParseAddr("192.0.2.9")}
	near, far := netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("198.51.100.1/24")
	for range 2000 {
		nodes, local := map[string]nodeState{}, map[string]bool{}
		for i := range 1 + random.IntN(4) {
			s := nodeState{excluded: random.IntN(4) == 0, ready: half(), expired: half(), stopping: half()}
			if s.subnets = []netip.Prefix{far}; half() {
				s.subnets = []netip.Prefix{near}
			}
			nodes[fmt.Sprint("n", i)] = s
			local[fmt.Sprint("n", i)] = half()
		}
		if half() {
			local = nil
		}
		// rank is higher for a better node.
		rank := func(name string) int {
			s, r := nodes[name], 1
			for i, good := range []bool{!s.stopping, local == nil || local[name], s.ready && !s.expired, s.subnets[0] == near} {
				if good {
					r += 2 << i
				}
			}
			if s.excluded {
				r = 0
			}
			return r
		}
		highest := 0
		for name := range nodes {
			highest = max(highest, rank(name))
		}
		chosen := elect("uid", "", addresses, nodes, local)
		if highest == 0 {
			if chosen != "" {
				t.Fatalf("%v: %q is excluded", nodes, chosen)
			}
			continue
		}
		if rank(chosen) != highest {
			t.Fatalf("%v, local %v: elected %q", nodes, local, chosen)
		}
		for _, name := range slices.Sorted(maps.Keys(nodes)) {
			want := chosen
			if rank(name) == highest {
				want = name
			}
			if got := elect("uid", name, addresses, nodes, local); got != want {
				t.Fatalf("%v, local %v, current %q: elected %q, want %q", nodes, local, name, got, want)
			}
		}
	}
}

// TestSpread checks that Services are spread over nodes, and that a lost node affects only its own Services.
func TestSpread(t *testing.T) {
	nodes := map[string]nodeState{"n1": {ready: true}, "n2": {ready: true}, "n3": {ready: true}}
	count, chosen := map[string]int{}, map[string]string{}
	for i := range 300 {
		uid := fmt.Sprint("uid-", i)
		chosen[uid] = elect(uid, "", nil, nodes, nil)
		count[chosen[uid]]++
	}
	for name, n := range count {
		if n < 60 || len(count) != 3 {
			t.Errorf("node %s announces %d of 300 Services: %v", name, n, count)
		}
	}
	nodes["n2"] = nodeState{}
	for uid, name := range chosen {
		if got := elect(uid, "", nil, nodes, nil); name != "n2" && got != name || got == "n2" {
			t.Errorf("%s moves from %s to %s", uid, name, got)
		}
	}
}

// TestRandomPool checks with random Services, requests, deletions and syncs that no two Services share an address, that
// Services keep their addresses, and that a Service is pending only if no address is free for it.
func TestRandomPool(t *testing.T) {
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 5))
		f := newPoolFixture(t, "192.0.2.10-192.0.2.13", node("n1", true, "192.0.2.1"), node("n2", true, "192.0.2.12"))
		requested, had := map[string]string{}, map[string]string{}
		for step := range 60 {
			name := fmt.Sprint("s", random.IntN(6))
			if _, exists := requested[name]; !exists {
				want := ""
				if random.IntN(3) == 0 {
					want = fmt.Sprint("192.0.2.", 10+random.IntN(4))
				}
				requested[name] = want
				f.Add(service(name, step, requests(want)))
			} else if random.IntN(4) == 0 {
				f.delete(name)
				delete(requested, name)
				delete(had, name)
			}
			f.Observe(services)
			// A waiting Service is synced after the one that has released an address.
			f.c.Add("default/" + name)
			for f.c.Len() > 0 {
				if err := f.c.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				f.Observe(services)
			}
			all, used := f.sync(), map[string]string{}
			for name, svc := range all {
				ip := ips(svc)
				if ip == "" {
					continue
				}
				if by := used[ip]; by != "" || ip == "192.0.2.12" || !f.c.pool.pool.Contains(netip.MustParseAddr(ip)) {
					t.Fatalf("seed %d: %s has address %s, which %q has", seed, name, ip, by)
				}
				used[ip] = name
				if before := had[name]; before != "" && before != ip || requested[name] != "" && requested[name] != ip {
					t.Fatalf("seed %d: %s has address %s, had %s, requested %s", seed, name, ip, before, requested[name])
				}
				had[name] = ip
			}
			for name, svc := range all {
				want := requested[name]
				if ips(svc) == "" && (want == "" && len(used) < 3 || want != "" && want != "192.0.2.12" && used[want] == "") {
					t.Fatalf("seed %d: %s is pending although an address is free: requested %q, used %v, error %q", seed, name, want, used, addressError(svc))
				}
			}
		}
	}
}
