package endpointslicemirroring

import (
	"context"
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
		t.Errorf("written again: %v", w)
	}
	other := e.DeepCopy()
	other.Subsets[0].Ports[0].Port = 5433
	f.Cache(other)
	if err := controltest.Sync(t, c.Loop, "ns/db"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 2 || !strings.HasPrefix(w[0], "update endpointslices") || !strings.HasPrefix(w[1], "update endpointslices") {
		t.Errorf("not changed in place for other ports: %v", w)
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
