package endpoints

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hyperkube/components/controllers/internal/controltest"
)

var webLabels = map[string]string{"app": "web"}

func service(ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Labels: map[string]string{"l": "v"}},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.5", Selector: webLabels, Ports: ports},
	}
}

func podWith(name, ip string, phase corev1.PodPhase) *corev1.Pod {
	p := controltest.Pod("ns", name, webLabels, phase)
	p.Status.PodIP = ip
	p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}}}
	return p
}

func TestSync(t *testing.T) {
	svc := service(
		corev1.ServicePort{Name: "a", Port: 80, TargetPort: intstr.FromString("http"), Protocol: corev1.ProtocolTCP},
		corev1.ServicePort{Name: "b", Port: 81, TargetPort: intstr.FromInt32(9090), Protocol: corev1.ProtocolTCP})
	f := controltest.New(t, svc, podWith("p1", "10.244.0.2", corev1.PodRunning), podWith("p2", "10.244.0.3", corev1.PodPending), podWith("p3", "10.244.0.4", corev1.PodSucceeded))
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, c.Loop, "ns/web"); err != nil {
		t.Fatal(err)
	}
	e, err := f.Kube.CoreV1().Endpoints("ns").Get(context.Background(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Subsets) != 1 {
		t.Fatalf("subsets %+v", e.Subsets)
	}
	s := e.Subsets[0]
	if len(s.Addresses) != 1 || s.Addresses[0].IP != "10.244.0.2" || s.Addresses[0].TargetRef.Name != "p1" || *s.Addresses[0].NodeName != "n1" ||
		len(s.NotReadyAddresses) != 1 || s.NotReadyAddresses[0].IP != "10.244.0.3" {
		t.Errorf("addresses %+v", s)
	}
	if len(s.Ports) != 2 || s.Ports[0].Port != 8080 || s.Ports[1].Port != 9090 {
		t.Errorf("ports %+v", s.Ports)
	}
	if e.Labels["l"] != "v" || e.Labels[managedByLabel] != managedBy {
		t.Errorf("labels %v", e.Labels)
	}
	f.Writes()
	f.Cache(e)
	if err := controltest.Sync(t, c.Loop, "ns/web"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 0 {
		t.Errorf("repeated writes: %v", w)
	}
	if err := f.Env.Informers.Core().V1().Services().Informer().GetIndexer().Delete(svc); err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, c.Loop, "ns/web"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 1 || w[0] != "delete endpoints web" {
		t.Errorf("writes %v", w)
	}
}

// TestPackAgainstUnpack: packing loses no entry, and the result depends on the content only.
func TestPackAgainstUnpack(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		var in []entry
		seen := map[string]bool{}
		for range r.IntN(30) {
			ip, port := fmt.Sprintf("10.0.0.%d", r.IntN(8)), int32(r.IntN(4))
			key := fmt.Sprint(ip, port)
			if seen[key] {
				continue
			}
			seen[key] = true
			in = append(in, entry{address: corev1.EndpointAddress{IP: ip}, ready: ip > "10.0.0.3", port: &corev1.EndpointPort{Port: port}})
		}
		a := pack(in)
		out := unpack(a)
		if len(out) != len(in) {
			t.Fatalf("%d of %d", len(out), len(in))
		}
		r.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
		if !equality.Semantic.DeepEqual(a, pack(in)) {
			t.Fatal("the result depends on the order of entries")
		}
		for _, e := range out {
			if !seen[fmt.Sprint(e.address.IP, e.port.Port)] || e.ready != (e.address.IP > "10.0.0.3") {
				t.Fatalf("made up %+v", e)
			}
		}
	}
}

func TestTruncate(t *testing.T) {
	var in []entry
	for i := range 1500 {
		in = append(in, entry{address: corev1.EndpointAddress{IP: fmt.Sprint(i)}, ready: i%3 == 0, port: &corev1.EndpointPort{Port: 1}})
	}
	s := pack(in)
	if !truncate(s, maxAddresses) || len(s[0].Addresses) != 500 || len(s[0].NotReadyAddresses) != 500 {
		t.Errorf("%d ready, %d not", len(s[0].Addresses), len(s[0].NotReadyAddresses))
	}
	if truncate(s, maxAddresses) {
		t.Error("truncated again")
	}
}

// TestOrphanedEndpoints: Endpoints that appear in the cache after their Service was deleted are deleted;
// Endpoints that were not created by the controller are kept.
func TestOrphanedEndpoints(t *testing.T) {
	f := controltest.New(t, service())
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		service string
		labels  map[string]string
		want    int
	}{
		"of a Service":  {"web", map[string]string{managedByLabel: managedBy}, 0},
		"orphaned":      {"gone", map[string]string{managedByLabel: managedBy}, 1},
		"no manager":    {"gone", nil, 0},
		"other manager": {"gone", map[string]string{managedByLabel: "me"}, 0},
	} {
		c.enqueueOrphan(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: tc.service, Labels: tc.labels}})
		if got := c.Len(); got != tc.want {
			t.Errorf("%s: %d keys", name, got)
		}
		if err := c.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestShares: truncation keeps as many addresses as the limit allows, however they are distributed
// over subsets.
func TestShares(t *testing.T) {
	addresses := func(n int) []corev1.EndpointAddress { return make([]corev1.EndpointAddress, n) }
	for _, tc := range []struct {
		name        string
		in, want    [][2]int // numbers of ready and not ready addresses, by subset
		isTruncated bool
	}{
		{"few", [][2]int{{400, 600}}, [][2]int{{400, 600}}, false},
		{"too many not ready", [][2]int{{400, 700}}, [][2]int{{400, 600}}, true},
		{"too many ready", [][2]int{{600, 300}, {500, 100}}, [][2]int{{546, 0}, {454, 0}}, true},
		{"not ready ones in several subsets", [][2]int{{100, 400}, {100, 500}}, [][2]int{{100, 356}, {100, 444}}, true},
		{"one too many", [][2]int{{500, 0}, {501, 0}}, [][2]int{{500, 0}, {500, 0}}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var subsets []corev1.EndpointSubset
			for _, n := range tc.in {
				subsets = append(subsets, corev1.EndpointSubset{Addresses: addresses(n[0]), NotReadyAddresses: addresses(n[1])})
			}
			if got := truncate(subsets, maxAddresses); got != tc.isTruncated {
				t.Errorf("truncated %v", got)
			}
			for i, s := range subsets {
				if got := [2]int{len(s.Addresses), len(s.NotReadyAddresses)}; got != tc.want[i] {
					t.Errorf("subset %d: %v, want %v", i, got, tc.want[i])
				}
			}
		})
	}
	few := []corev1.EndpointSubset{{Addresses: addresses(2)}, {Addresses: addresses(2)}}
	if !truncate(few, 3) || len(few[0].Addresses) != 2 || len(few[1].Addresses) != 1 {
		t.Errorf("got %v, want three of four", few)
	}
}

// TestOverCapacityAnnotation: the over-capacity annotation is removed when there are no longer too many
// addresses, whatever its value is.
func TestOverCapacityAnnotation(t *testing.T) {
	f := controltest.New(t, service(corev1.ServicePort{Port: 80, TargetPort: intstr.FromInt32(80)}), podWith("p", "10.244.0.2", corev1.PodRunning))
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	sync := func() *corev1.Endpoints {
		t.Helper()
		if err := controltest.Sync(t, c.Loop, "ns/web"); err != nil {
			t.Fatal(err)
		}
		e, err := f.Kube.CoreV1().Endpoints("ns").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for _, note := range []string{"warning", truncated} {
		e := sync()
		e.Annotations = map[string]string{corev1.EndpointsOverCapacity: note}
		if e, err = f.Kube.CoreV1().Endpoints("ns").Update(t.Context(), e, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.Cache(e)
		if got, ok := sync().Annotations[corev1.EndpointsOverCapacity]; ok {
			t.Errorf("annotation %q became %q", note, got)
		}
	}
}

// TestNoEmptySubset: a subset without addresses is not written, because the API server rejects it.
func TestNoEmptySubset(t *testing.T) {
	svc := service(corev1.ServicePort{Port: 80})
	f := controltest.New(t, svc)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	subsets := []corev1.EndpointSubset{
		{Addresses: make([]corev1.EndpointAddress, maxAddresses)},
		{Addresses: make([]corev1.EndpointAddress, 1)},
		{NotReadyAddresses: make([]corev1.EndpointAddress, 5)},
	}
	if err := c.write(t.Context(), svc, subsets, time.Time{}); err != nil {
		t.Fatal(err)
	}
	e, err := f.Kube.CoreV1().Endpoints("ns").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || len(e.Subsets) != 1 || len(e.Subsets[0].Addresses) != maxAddresses {
		t.Errorf("%d subsets, %v", len(e.Subsets), err)
	}
}
