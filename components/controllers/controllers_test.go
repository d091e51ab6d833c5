package controllers

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/components/controllers/loadbalancer"
	"hyperkube/components/controllers/loadbalancer/addresspool"
	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/client"
	"hyperkube/internal/testing/testwait"
)

func TestChoose(t *testing.T) {
	for _, tc := range []struct {
		name string
		flag []string
		has  []string
		not  []string
		err  bool
	}{
		{name: "default", has: []string{"deployment-controller"}},
		{name: "all except one", flag: []string{"*", "-deployment-controller"}, has: []string{"replicaset-controller"}, not: []string{"deployment-controller"}},
		{name: "all except one, by alias", flag: []string{"*", "-nodeipam"}, not: []string{"node-ipam-controller"}},
		{name: "one only", flag: []string{"deployment"}, has: []string{"deployment-controller"}, not: []string{"replicaset-controller"}},
		{name: "unknown", flag: []string{"*", "nonsense"}, err: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			chosen, err := chooseControllers(tc.flag)
			if (err != nil) != tc.err {
				t.Fatalf("error %v", err)
			}
			var names []string
			for _, d := range chosen {
				names = append(names, d.name)
			}
			for _, n := range tc.has {
				if !slices.Contains(names, n) {
					t.Errorf("%s is missing in %v", n, names)
				}
			}
			for _, n := range tc.not {
				if slices.Contains(names, n) {
					t.Errorf("%s is in %v", n, names)
				}
			}
		})
	}
}

// TestCheckPool checks that a pool is refused if no controller would assign its addresses.
func TestCheckPool(t *testing.T) {
	pool, err := addresspool.Parse([]string{"192.0.2.0/28"})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		cfg Config
		err bool
	}{
		"no pool":        {cfg: Config{}},
		"controller off": {cfg: Config{LoadBalancer: loadbalancer.Config{Pool: pool}}, err: true},
		"controller on":  {cfg: Config{LoadBalancer: loadbalancer.Config{Pool: pool}, Controllers: []string{"*", loadBalancerName}}},
		"cloud":          {cfg: Config{LoadBalancer: loadbalancer.Config{Pool: pool}, Controllers: []string{"*", loadBalancerName}, CloudProvider: cloudprovider.External}, err: true},
	} {
		chosen, err := chooseControllers(tc.cfg.Controllers)
		if err != nil {
			t.Fatal(err)
		}
		if err := tc.cfg.checkPool(chosen); (err != nil) != tc.err {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRun creates a Deployment and waits until the running controllers have created its pods.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	kube := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
	)
	clients := &client.Clients{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}
	m, err := New(Config{
		Clients:           clients,
		Controllers:       []string{"deployment", "replicaset", "serviceaccount", "root-ca-cert-publisher", "nodeipam", "endpointslice"},
		AllocateNodeCIDRs: true,
		ClusterCIDRs:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		RootCA:            []byte("ca"),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	clients.Informers.StartWithContext(ctx)
	select {
	case <-m.Ready():
	case <-ctx.Done():
		t.Fatal("not ready")
	}
	watch, err := kube.CoreV1().Pods("ns").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	three := int32(3)
	labels := map[string]string{"app": "web"}
	_, err = kube.AppsV1().Deployments("ns").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "u"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &three,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-watch.ResultChan():
		if pod, ok := e.Object.(*corev1.Pod); !ok || pod.OwnerReferences[0].Kind != "ReplicaSet" {
			t.Errorf("unexpected %v", e)
		}
	case <-ctx.Done():
		t.Fatal("no pod was created")
	}
	for what, get := range map[string]func() error{
		"service account": func() error {
			_, err := kube.CoreV1().ServiceAccounts("ns").Get(ctx, "default", metav1.GetOptions{})
			return err
		},
		"root CA": func() error {
			_, err := kube.CoreV1().ConfigMaps("ns").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
			return err
		},
	} {
		testwait.Succeed(t, what, get)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	clients.Informers.Shutdown()
	gathered, err := m.Metrics().Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, family := range gathered {
		names[family.GetName()] = true
	}
	for _, name := range []string{"root_ca_cert_publisher_sync_total", "root_ca_cert_publisher_sync_duration_seconds"} {
		if !names[name] {
			t.Errorf("no metric %s", name)
		}
	}
}
