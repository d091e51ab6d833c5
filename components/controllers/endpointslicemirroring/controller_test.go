package endpointslicemirroring

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/controltest"
)

func TestMirror(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "s"}}
	e := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "e", Labels: map[string]string{"l": "v"}},
		Subsets: []corev1.EndpointSubset{{
			Addresses:         []corev1.EndpointAddress{{IP: "192.0.2.1"}, {IP: "2001:db8::1"}, {IP: "nonsense"}},
			NotReadyAddresses: []corev1.EndpointAddress{{IP: "192.0.2.2"}},
			Ports:             []corev1.EndpointPort{{Name: "sql", Port: 5432, Protocol: corev1.ProtocolTCP}},
		}},
	}
	f := controltest.New(t, svc, e)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	slices := func() []discoveryv1.EndpointSlice {
		t.Helper()
		list, err := f.Kube.DiscoveryV1().EndpointSlices("ns").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	if err := controltest.Sync(t, c.Loop, "ns/db"); err != nil {
		t.Fatal(err)
	}
	got := slices()
	if len(got) != 2 {
		t.Fatalf("%d slices, want one of each family", len(got))
	}
	for _, s := range got {
		want := map[discoveryv1.AddressType]int{discoveryv1.AddressTypeIPv4: 2, discoveryv1.AddressTypeIPv6: 1}[s.AddressType]
		if len(s.Endpoints) != want || *s.Ports[0].Port != 5432 || s.Labels["l"] != "v" || s.OwnerReferences[0].Kind != "Endpoints" {
			t.Errorf("slice %+v", s)
		}
		f.Cache(&s)
	}
	if ev := f.Recorded(); len(ev) != 1 || ev[0] != "Warning InvalidIPAddress Skipped 1 invalid IP addresses when mirroring to EndpointSlices" {
		t.Errorf("events %q", ev)
	}
	f.Writes()
	if err := controltest.Sync(t, c.Loop, "ns/db"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 0 {
		t.Errorf("repeated writes: %v", w)
	}
	other := e.DeepCopy()
	other.Subsets[0].Ports[0].Port = 5433
	f.Cache(other)
	if err := controltest.Sync(t, c.Loop, "ns/db"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 2 || !strings.HasPrefix(w[0], "update endpointslices") || !strings.HasPrefix(w[1], "update endpointslices") {
		t.Errorf("not updated in place with other ports: %v", w)
	}
	for _, s := range slices() {
		if *s.Ports[0].Port != 5433 {
			t.Errorf("slice %+v", s)
		}
		f.Cache(&s)
	}
	skip := other.DeepCopy()
	skip.Labels[discoveryv1.LabelSkipMirror] = "true"
	f.Cache(skip)
	if err := controltest.Sync(t, c.Loop, "ns/db"); err != nil {
		t.Fatal(err)
	}
	if n := len(slices()); n != 0 {
		t.Errorf("%d slices left", n)
	}
}

// TestMirrorOf: the slices for various Endpoints, written as the family, the port names, and the
// addresses; ready addresses have a *.
func TestMirrorOf(t *testing.T) {
	address := func(ips ...string) (out []corev1.EndpointAddress) {
		for _, ip := range ips {
			out = append(out, corev1.EndpointAddress{IP: ip})
		}
		return out
	}
	ports := func(names ...string) (out []corev1.EndpointPort) {
		for i, n := range names {
			out = append(out, corev1.EndpointPort{Name: n, Port: int32(80 + i), Protocol: corev1.ProtocolTCP})
		}
		return out
	}
	for _, tc := range []struct {
		name    string
		subsets []corev1.EndpointSubset
		want    string
	}{
		{"none", nil, ""},
		{"no ports", []corev1.EndpointSubset{{Addresses: address("192.0.2.1")}}, "IPv4[] 192.0.2.1*"},
		{"leading zeros", []corev1.EndpointSubset{{Addresses: address("192.000.002.001"), Ports: ports("a")}}, "IPv4[a] 192.0.2.1*"},
		{"IPv4-mapped", []corev1.EndpointSubset{{Addresses: address("::ffff:192.0.2.1"), Ports: ports("a")}}, "IPv4[a] 192.0.2.1*"},
		{"not canonical", []corev1.EndpointSubset{{Addresses: address("2001:db8:0:0::1"), Ports: ports("a")}}, "IPv6[a] 2001:db8::1*"},
		{"duplicate in two subsets", []corev1.EndpointSubset{
			{Addresses: address("192.0.2.1"), Ports: ports("a", "b")[:1]}, {Addresses: address("192.0.2.1"), Ports: ports("a", "b")[1:]},
		}, "IPv4[a b] 192.0.2.1*"},
		{"duplicate", []corev1.EndpointSubset{
			{Addresses: address("192.0.2.1", "192.0.2.2"), Ports: ports("a")}, {Addresses: address("192.0.2.1"), Ports: ports("a")},
		}, "IPv4[a] 192.0.2.1* 192.0.2.2*"},
		{"ready and not", []corev1.EndpointSubset{
			{Addresses: address("192.0.2.1", "192.0.2.2"), Ports: ports("a")}, {NotReadyAddresses: address("192.0.2.1"), Ports: ports("a")},
		}, "IPv4[a] 192.0.2.2* 192.0.2.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := controltest.New(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "s"}},
				&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "e"}, Subsets: tc.subsets})
			c, err := New(f.Env)
			if err != nil {
				t.Fatal(err)
			}
			if err := controltest.Sync(t, c.Loop, "ns/db"); err != nil {
				t.Fatal(err)
			}
			list, err := f.Kube.DiscoveryV1().EndpointSlices("ns").List(context.Background(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range list.Items {
				var names []string
				for _, p := range s.Ports {
					names = append(names, *p.Name)
				}
				slices.Sort(names) // the order depends on a hash
				text := string(s.AddressType) + "[" + strings.Join(names, " ") + "]"
				for _, e := range s.Endpoints {
					text += " " + e.Addresses[0]
					if *e.Conditions.Ready {
						text += "*"
					}
				}
				got = append(got, text)
			}
			if text := strings.Join(got, "; "); text != tc.want {
				t.Errorf("%q, want %q", text, tc.want)
			}
		})
	}
}

// TestMirrorsOfOthers: slices that existed before the controller are kept, are recreated when they
// are deleted, and are moved to new Endpoints of the same name.
func TestMirrorsOfOthers(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "s"}}
	e := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "e"},
		Subsets:    []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}}},
	}
	f := controltest.New(t, svc, e)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	slice := c.desiredSlices(e)[0]
	slice.Name, slice.Generation = "db-1", 1
	f.Add(slice)
	if err := controltest.Sync(t, c.Loop, "ns/db"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 0 {
		t.Errorf("written: %v", w)
	}
	if !c.tracker.Has(slice) {
		t.Error("the slice is not tracked")
	}
	again := e.DeepCopy()
	again.UID = "e2"
	f.Cache(again)
	if err := controltest.Sync(t, c.Loop, "ns/db"); err != nil {
		t.Fatal(err)
	}
	s, err := f.Kube.DiscoveryV1().EndpointSlices("ns").Get(context.Background(), "db-1", metav1.GetOptions{})
	if err != nil || len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != "e2" {
		t.Errorf("owners %+v, %v", s.OwnerReferences, err)
	}
	f.Writes()
	// Endpoints that are being deleted get no more slices.
	f.Cache(s)
	gone := again.DeepCopy()
	now := metav1.NewTime(controltest.Now)
	gone.DeletionTimestamp, gone.Finalizers = &now, []string{"example.org/x"}
	gone.Subsets = append(gone.Subsets, corev1.EndpointSubset{Addresses: []corev1.EndpointAddress{{IP: "2001:db8::1"}}})
	f.Cache(gone)
	if err := controltest.Sync(t, c.Loop, "ns/db"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); controltest.Count(w, "create") != 0 {
		t.Errorf("writes %v", w)
	}
}
