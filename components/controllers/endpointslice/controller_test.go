package endpointslice

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hyperkube/components/controllers/internal/controltest"
)

func TestSync(t *testing.T) {
	webLabels := map[string]string{"app": "web"}
	now := metav1.NewTime(controltest.Now)
	pod := func(name, ip string, phase corev1.PodPhase) *corev1.Pod {
		p := controltest.Pod("ns", name, webLabels, phase)
		p.Status.PodIP, p.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
		return p
	}
	ending := pod("ending", "10.244.0.9", corev1.PodRunning)
	ending.DeletionTimestamp, ending.Finalizers = &now, []string{"x"}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "s"},
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, Selector: webLabels, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80), Protocol: corev1.ProtocolTCP}},
		},
	}
	f := controltest.New(t, svc, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		pod("ready", "10.244.0.2", corev1.PodRunning), pod("pending", "10.244.0.3", corev1.PodPending), ending)
	c, err := New(f.Env, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := controltest.Sync(t, c.Loop, "ns/web"); err != nil {
		t.Fatal(err)
	}
	list, err := f.Kube.DiscoveryV1().EndpointSlices("ns").List(context.Background(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d slices, %v", len(list.Items), err)
	}
	s := list.Items[0]
	if s.Labels[discoveryv1.LabelManagedBy] != controllerName || s.Labels[discoveryv1.LabelServiceName] != "web" || s.Labels[corev1.IsHeadlessService] != "" {
		t.Errorf("labels %v", s.Labels)
	}
	want := map[string][3]bool{"10.244.0.2": {true, true, false}, "10.244.0.3": {false, false, false}, "10.244.0.9": {false, true, true}}
	if len(s.Endpoints) != len(want) {
		t.Errorf("endpoints %+v", s.Endpoints)
	}
	for _, e := range s.Endpoints {
		cond := e.Conditions
		if got := [3]bool{*cond.Ready, *cond.Serving, *cond.Terminating}; got != want[e.Addresses[0]] {
			t.Errorf("%s: %v, want %v", e.Addresses[0], got, want[e.Addresses[0]])
		}
	}
	// The sync fails until the slice is in the cache.
	f.Writes()
	if err := controltest.Sync(t, c.Loop, "ns/web"); err == nil {
		t.Error("synced with a stale cache")
	}
	f.Cache(&s)
	if err := controltest.Sync(t, c.Loop, "ns/web"); err != nil {
		t.Fatal(err)
	}
	if w := f.Writes(); len(w) != 0 {
		t.Errorf("writes %v", w)
	}
}
