package bootstrap

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/serviceip"
	"hyperkube/internal/api/core"
	"hyperkube/internal/api/discovery"
	"hyperkube/internal/api/networking"
	"hyperkube/internal/api/rbac"
	"hyperkube/internal/api/scheduling"
	"hyperkube/internal/store"
	"hyperkube/internal/testing/testetcd"
)

func startRegistry(t testing.TB) *registry.Registry { return startRegistryOn(t, testetcd.Client(t)) }

func startRegistryOn(t testing.TB, client *clientv3.Client) *registry.Registry {
	t.Helper()
	s, err := store.New(store.Config{Client: client, Prefix: "/registry"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	r, err := registry.New(registry.Config{Store: s, Resources: slices.Concat(core.Resources(), rbac.Resources(),
		scheduling.Resources(), networking.Resources(), discovery.Resources())})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func get[T any](t *testing.T, r *registry.Registry, gvr schema.GroupVersionResource, key string) (T, *store.Entry) {
	t.Helper()
	e, err := r.Lookup(gvr).Collection.Get(t.Context(), key, -1)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := e.Object()
	if err != nil {
		t.Fatal(err)
	}
	return obj.(T), e
}

func TestRunWritesMissingObjects(t *testing.T) {
	r := startRegistry(t)
	cfg := Config{Registry: r, ServiceCIDRs: []string{"10.96.0.0/16"}, Log: quiet()}
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	ns, _ := get[*corev1.Namespace](t, r, corev1.SchemeGroupVersion.WithResource("namespaces"), "kube-system")
	if ns.Status.Phase != corev1.NamespaceActive || len(ns.Spec.Finalizers) != 1 || ns.UID == "" || ns.CreationTimestamp.IsZero() {
		t.Errorf("namespace %+v", ns)
	}
	cidr, _ := get[*networkingv1.ServiceCIDR](t, r, networkingv1.SchemeGroupVersion.WithResource("servicecidrs"), "kubernetes")
	if len(cidr.Status.Conditions) != 1 {
		t.Errorf("range %+v", cidr)
	}
	roles := rbacv1.SchemeGroupVersion.WithResource("clusterroles")
	policy := DefaultPolicy()
	if got := r.Lookup(roles).Collection.Len(); got != len(policy.ClusterRoles) {
		t.Errorf("%d cluster roles, want %d", got, len(policy.ClusterRoles))
	}
	revision, err := r.Store().CurrentRevision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if again, _ := r.Store().CurrentRevision(t.Context()); again != revision {
		t.Errorf("a second run wrote up to %d, the first to %d", again, revision)
	}
}

// slow simulates an etcd whose first writes time out although some of them were committed.
type slow struct {
	clientv3.KV
	left *atomic.Int32
}

func (s slow) Txn(ctx context.Context) clientv3.Txn { return slowTxn{s.KV.Txn(ctx), s.left} }

type slowTxn struct {
	clientv3.Txn
	left *atomic.Int32
}

func (t slowTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { return slowTxn{t.Txn.If(cs...), t.left} }
func (t slowTxn) Then(ops ...clientv3.Op) clientv3.Txn { return slowTxn{t.Txn.Then(ops...), t.left} }
func (t slowTxn) Else(ops ...clientv3.Op) clientv3.Txn { return slowTxn{t.Txn.Else(ops...), t.left} }

func (t slowTxn) Commit() (*clientv3.TxnResponse, error) {
	left := t.left.Add(-1)
	if left < 0 {
		return t.Txn.Commit()
	}
	if left%2 == 0 {
		if _, err := t.Txn.Commit(); err != nil {
			return nil, err
		}
	}
	return nil, rpctypes.ErrTimeout
}

// TestRunOnSlowEtcd checks that a disk that stalls for seconds does not make startup fail.
func TestRunOnSlowEtcd(t *testing.T) {
	client := testetcd.Client(t)
	left := &atomic.Int32{}
	left.Store(2)
	client.KV = slow{client.KV, left}
	r := startRegistryOn(t, client)
	if err := Run(t.Context(), Config{Registry: r, Log: quiet()}); err != nil {
		t.Fatal(err)
	}
	page, err := r.Lookup(rbacv1.SchemeGroupVersion.WithResource("clusterroles")).Collection.List(t.Context(), store.ListOptions{Revision: -1})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(page.Entries), len(DefaultPolicy().ClusterRoles); got != want {
		t.Errorf("%d cluster roles, want %d", got, want)
	}
	if left.Load() >= 0 {
		t.Error("no response was slow")
	}
}

func TestRunReconcilesRoles(t *testing.T) {
	r := startRegistry(t)
	cfg := Config{Registry: r, Log: quiet()}
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	roles, bindings := rbacv1.SchemeGroupVersion.WithResource("clusterroles"), rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings")
	change := func(gvr schema.GroupVersionResource, key string, f func(obj any)) {
		t.Helper()
		e, err := r.Lookup(gvr).Collection.Get(t.Context(), key, -1)
		if err != nil {
			t.Fatal(err)
		}
		obj, err := e.Object()
		if err != nil {
			t.Fatal(err)
		}
		is := obj.DeepCopyObject()
		f(is)
		is.(interface{ SetResourceVersion(string) }).SetResourceVersion("")
		if _, _, err := r.Store().Commit(t.Context(), r.Lookup(gvr).Collection.Update(e, is, 0)); err != nil {
			t.Fatal(err)
		}
	}
	extra := rule("get", "example.com", "things")
	change(roles, "system:kube-scheduler", func(obj any) {
		role := obj.(*rbacv1.ClusterRole)
		role.Rules = append(role.Rules[3:], extra)
	})
	change(roles, "system:kube-dns", func(obj any) {
		role := obj.(*rbacv1.ClusterRole)
		role.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false"
		role.Rules = nil
	})
	change(bindings, "cluster-admin", func(obj any) { obj.(*rbacv1.ClusterRoleBinding).Subjects = nil })
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	scheduler, _ := get[*rbacv1.ClusterRole](t, r, roles, "system:kube-scheduler")
	if n := len(scheduler.Rules); n < 20 || !slices.ContainsFunc(scheduler.Rules, func(r rbacv1.PolicyRule) bool { return r.APIGroups[0] == "example.com" }) {
		t.Errorf("the scheduler has %d rules: %v", n, scheduler.Rules)
	}
	if dns, _ := get[*rbacv1.ClusterRole](t, r, roles, "system:kube-dns"); len(dns.Rules) != 0 {
		t.Error("a role that opted out of reconciliation was changed")
	}
	if admin, _ := get[*rbacv1.ClusterRoleBinding](t, r, bindings, "cluster-admin"); len(admin.Subjects) != 1 {
		t.Errorf("the administrators are %v", admin.Subjects)
	}
}

func TestPolicyIsValid(t *testing.T) {
	r := startRegistry(t)
	policy := DefaultPolicy()
	for _, list := range []struct {
		resource string
		objects  int
		check    func(i int) []string
	}{
		{"clusterroles", len(policy.ClusterRoles), func(i int) []string {
			return errorsOf(r.Lookup(rbacv1.SchemeGroupVersion.WithResource("clusterroles")), policy.ClusterRoles[i])
		}},
		{"clusterrolebindings", len(policy.ClusterRoleBindings), func(i int) []string {
			return errorsOf(r.Lookup(rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings")), policy.ClusterRoleBindings[i])
		}},
		{"roles", len(policy.Roles), func(i int) []string {
			return errorsOf(r.Lookup(rbacv1.SchemeGroupVersion.WithResource("roles")), policy.Roles[i])
		}},
		{"rolebindings", len(policy.RoleBindings), func(i int) []string {
			return errorsOf(r.Lookup(rbacv1.SchemeGroupVersion.WithResource("rolebindings")), policy.RoleBindings[i])
		}},
	} {
		for i := range list.objects {
			for _, e := range list.check(i) {
				t.Errorf("%s %d: %s", list.resource, i, e)
			}
		}
	}
	names := map[string]bool{}
	for _, role := range policy.ClusterRoles {
		if names[role.Name] {
			t.Errorf("%s is duplicate", role.Name)
		}
		names[role.Name] = true
	}
	for _, b := range policy.ClusterRoleBindings {
		if !names[b.RoleRef.Name] {
			t.Errorf("%s binds a role that does not exist", b.Name)
		}
	}
}

func errorsOf(r *registry.Resource, obj interface{ GetName() string }) []string {
	var out []string
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		r.Default(o)
		for _, e := range r.Validate(context.Background(), o) {
			out = append(out, e.Error())
		}
	case *rbacv1.ClusterRoleBinding:
		r.Default(o)
		for _, e := range r.Validate(context.Background(), o) {
			out = append(out, e.Error())
		}
	case *rbacv1.Role:
		r.Default(o)
		for _, e := range r.Validate(context.Background(), o) {
			out = append(out, e.Error())
		}
	case *rbacv1.RoleBinding:
		r.Default(o)
		for _, e := range r.Validate(context.Background(), o) {
			out = append(out, e.Error())
		}
	}
	return out
}

func TestKeeper(t *testing.T) {
	r := startRegistry(t)
	alloc, err := serviceip.New(serviceip.Config{
		Store:       r.Store(),
		Services:    r.Collection(schema.GroupResource{Resource: "services"}),
		IPAddresses: r.Collection(schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"}),
		CIDRs:       []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Log:         quiet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	services := schema.GroupResource{Resource: "services"}
	if err := r.AddHook(services, alloc.Hook); err != nil {
		t.Fatal(err)
	}
	k, err := NewServiceReconciler(ServiceReconcilerConfig{
		Registry:  r,
		ServiceIP: netip.MustParseAddr("10.96.0.1"),
		Advertise: netip.MustParseAddrPort("192.0.2.1:6443"),
		Log:       quiet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := k.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer cancel()
	<-k.Ready()

	svc, e := get[*corev1.Service](t, r, corev1.SchemeGroupVersion.WithResource("services"), "default/kubernetes")
	if svc.Spec.ClusterIP != "10.96.0.1" || svc.Spec.Ports[0].TargetPort.IntValue() != 6443 || svc.UID == "" {
		t.Errorf("service %+v", svc.Spec)
	}
	get[*networkingv1.IPAddress](t, r, networkingv1.SchemeGroupVersion.WithResource("ipaddresses"), "10.96.0.1")
	ep, _ := get[*corev1.Endpoints](t, r, corev1.SchemeGroupVersion.WithResource("endpoints"), "default/kubernetes")
	if len(ep.Subsets) != 1 || ep.Subsets[0].Addresses[0].IP != "192.0.2.1" {
		t.Errorf("endpoints %+v", ep.Subsets)
	}
	slices, _ := get[*discoveryv1.EndpointSlice](t, r, discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), "default/kubernetes")
	if slices.Endpoints[0].Addresses[0] != "192.0.2.1" || *slices.Ports[0].Port != 6443 {
		t.Errorf("slice %+v", slices)
	}

	// If a client deletes it, it is created again.
	c := r.Collection(services)
	w, err := c.Watch(ctx, store.WatchOptions{Since: e.Revision()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ops, err := alloc.Hook(ctx, nil, svc)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Store().Commit(ctx, append(ops, c.Delete(e))...); err != nil {
		t.Fatal(err)
	}
	for back := false; !back; {
		batch, err := w.Next(ctx)
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		for _, ev := range batch.Events {
			back = back || ev.Current != nil && ev.Previous == nil
		}
	}
}

// TestMultipleServers checks that all running API servers of a cluster are endpoints of the Service
// kubernetes.
func TestMultipleServers(t *testing.T) {
	client := testetcd.Client(t)
	r := startRegistryOn(t, client)
	start := func(address string) (stop func()) {
		k, err := NewServiceReconciler(ServiceReconcilerConfig{
			Registry: r, ServiceIP: netip.MustParseAddr("10.96.0.1"), Advertise: netip.MustParseAddrPort(address),
			Etcd: client, Prefix: "/registry", Log: quiet(),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := k.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		<-k.Ready()
		return func() { cancel(); running.Wait() }
	}
	w, err := r.Lookup(discoveryv1.SchemeGroupVersion.WithResource("endpointslices")).Collection.Watch(t.Context(), store.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	expect := func(want string) {
		t.Helper()
		for {
			s, _ := get[*discoveryv1.EndpointSlice](t, r, discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), "default/kubernetes")
			var got []string
			for _, e := range s.Endpoints {
				got = append(got, e.Addresses...)
			}
			if strings.Join(got, " ") == want {
				return
			}
			if _, err := w.Next(t.Context()); err != nil {
				t.Fatalf("%v, want %s: %v", got, want, err)
			}
		}
	}
	defer start("192.0.2.2:6443")()
	expect("192.0.2.2")
	stop := start("192.0.2.1:6443")
	expect("192.0.2.1 192.0.2.2")
	stop()
	expect("192.0.2.2")
}
