package cloudcontroller

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
	fakecloud "k8s.io/cloud-provider/fake"

	"hyperkube/components/cloudcontroller/local"
	taint "hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/client"
	"hyperkube/internal/testing/testwait"
)

// newNode returns a Node as a kubelet with --cloud-provider=external registers it.
func newNode(name, ip, podCIDR string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Annotations: map[string]string{cloudproviderapi.AnnotationAlphaProvidedIPAddr: ip}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{taint.Taint()}, PodCIDR: podCIDR, PodCIDRs: []string{podCIDR}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
}

// start runs the controllers with a provider for the test, and returns the API.
func start(t *testing.T, provider cloudprovider.Interface, objects ...*corev1.Node) *fake.Clientset {
	t.Helper()
	kube := fake.NewClientset()
	for _, n := range objects {
		if err := kube.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	factory := informers.NewSharedInformerFactory(kube, 0)
	m, err := New(Config{
		Clients: &client.Clients{Kube: kube, Informers: factory}, Provider: provider, Routes: true, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		NodeMonitorPeriod: 20 * time.Millisecond, RouteReconciliationPeriod: 20 * time.Millisecond, NodeStatusUpdateFrequency: 20 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Running(); !slices.Equal(got, Names()) {
		t.Fatalf("the controllers %v run, want %v", got, Names())
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	factory.StartWithContext(ctx)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	})
	return kube
}

// getNode returns a Node of the API, or nil if it does not exist.
func getNode(t *testing.T, kube *fake.Clientset, name string) *corev1.Node {
	t.Helper()
	node, err := kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// addressList returns the addresses of a Node as text.
func addressList(n *corev1.Node) string {
	var out []string
	for _, a := range n.Status.Addresses {
		out = append(out, string(a.Type)+"="+a.Address)
	}
	return strings.Join(out, " ")
}

// TestLocal runs all controllers with the local provider: Nodes are initialized, get routes and serve as load balancers;
// a machine that is turned off gets a taint, and the Node of one that does not exist is deleted.
func TestLocal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cloud.yaml")
	if err := os.WriteFile(file, []byte(`
region: home
zone: cellar
machines:
- {name: a, zone: attic, instanceType: big, addresses: [{type: ExternalIP, address: 192.0.2.1}]}
- {name: b}
- {name: off, stopped: true}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	provider, err := local.New(file)
	if err != nil {
		t.Fatal(err)
	}
	kube := start(t, provider,
		newNode("a", "10.0.0.1", "10.1.0.0/24", corev1.ConditionTrue), newNode("b", "10.0.0.2", "10.1.1.0/24", corev1.ConditionTrue),
		newNode("off", "10.0.0.3", "10.1.2.0/24", corev1.ConditionUnknown), newNode("gone", "10.0.0.4", "10.1.3.0/24", corev1.ConditionUnknown))
	testwait.Until(t, "initialized nodes", func() bool {
		a, b := getNode(t, kube, "a"), getNode(t, kube, "b")
		return !taint.IsUninitialized(a) && !taint.IsUninitialized(b) && addressList(a) != "" && addressList(b) != ""
	})
	a, b := getNode(t, kube, "a"), getNode(t, kube, "b")
	if want := "InternalIP=10.0.0.1 Hostname=a ExternalIP=192.0.2.1"; addressList(a) != want {
		t.Errorf("a has the addresses %s, want %s", addressList(a), want)
	}
	if a.Spec.ProviderID != "local://a" || b.Spec.ProviderID != "local://b" {
		t.Errorf("provider IDs are %q and %q", a.Spec.ProviderID, b.Spec.ProviderID)
	}
	for label, want := range map[string]string{corev1.LabelTopologyZone: "attic cellar", corev1.LabelTopologyRegion: "home home", corev1.LabelInstanceTypeStable: "big "} {
		if got := a.Labels[label] + " " + b.Labels[label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
	testwait.Until(t, "routes", func() bool {
		for _, c := range getNode(t, kube, "b").Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse {
				return true
			}
		}
		return false
	})
	testwait.Until(t, "deletion of the Node of a machine that does not exist", func() bool { return getNode(t, kube, "gone") == nil })
	testwait.Until(t, "taint of a machine that is turned off", func() bool {
		return slices.ContainsFunc(getNode(t, kube, "off").Spec.Taints, func(x corev1.Taint) bool { return x.Key == cloudproviderapi.TaintNodeShutdown })
	})

	newService := func(name string, age time.Duration) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
			},
		}
	}
	for name, age := range map[string]time.Duration{"web": time.Hour, "late": time.Minute} {
		if _, err := kube.CoreV1().Services("default").Create(t.Context(), newService(name, age), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ingress := func(name string) string {
		svc, err := kube.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var ips []string
		for _, in := range svc.Status.LoadBalancer.Ingress {
			ips = append(ips, in.IP)
		}
		return strings.Join(ips, " ")
	}
	testwait.Until(t, "addresses of the load balancer", func() bool { return ingress("web") == "10.0.0.1 10.0.0.2 10.0.0.3" })
	testwait.Until(t, "event of the Service without a port", func() bool {
		list, err := kube.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "late" && strings.Contains(e.Message, "port 80/TCP is in use by Service default/web")
		})
	})
	if got := ingress("late"); got != "" {
		t.Errorf("a Service without a port has the addresses %s", got)
	}
}

// TestFakeCloud runs the controllers with the fake provider of the library, which has all parts of the interface.
func TestFakeCloud(t *testing.T) {
	cloud := &fakecloud.Cloud{
		EnableInstancesV2: true, Exists: true, ExistsByProviderID: true, Provider: "fake",
		ProviderID:    map[types.NodeName]string{"n": "fake://n"},
		InstanceTypes: map[types.NodeName]string{"n": "t1"},
		Addresses:     []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.9"}},
		RouteMap:      map[string]*fakecloud.Route{},
	}
	kube := start(t, cloud, newNode("n", "10.0.0.1", "10.1.0.0/24", corev1.ConditionTrue))
	testwait.Until(t, "an initialized node", func() bool {
		n := getNode(t, kube, "n")
		return !taint.IsUninitialized(n) && n.Spec.ProviderID == "fake://n" && addressList(n) == "InternalIP=10.0.0.1 ExternalIP=192.0.2.9"
	})
	testwait.Until(t, "a route", func() bool {
		cloud.Lock.Lock()
		defer cloud.Lock.Unlock()
		return len(cloud.RouteMap) == 1
	})
}

func TestSelectControllers(t *testing.T) {
	for flag, want := range map[string][]string{
		"":                             Names(),
		"*,-route":                     {cloudNode, cloudNodeLifecycle, serviceLB},
		"service,cloud-node":           {cloudNode, serviceLB},
		"service-lb-controller":        {serviceLB},
		"-cloud-node-controller,route": {nodeRoute},
	} {
		got, err := selectControllers(strings.FieldsFunc(flag, func(r rune) bool { return r == ',' }))
		if err != nil {
			t.Errorf("%q: %v", flag, err)
		}
		if len(got) != len(want) || slices.ContainsFunc(want, func(n string) bool { return !got[n] }) {
			t.Errorf("%q selects %v, want %v", flag, got, want)
		}
	}
	for _, wrong := range []string{"deployment", "-*", ""} {
		if _, err := selectControllers([]string{wrong}); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}
