package addons

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"

	"hyperkube/components/cluster/applyset"
	"hyperkube/components/cluster/internal/testapi"
	"hyperkube/internal/testing/testwait"
	"hyperkube/manifests"
)

// env is an API server with the add-ons.
type env struct {
	*testing.T
	*testapi.Server
	reconciler *Reconciler
}

func newEnv(t *testing.T, inProcess bool) env {
	s := testapi.Start(t)
	return env{t, s, &Reconciler{Client: s.Client(), Values: manifests.Values{
		Image: "hyperkube:v1", DNSAddress: "10.96.0.10", Domain: "cluster.local", NodeDNSDir: "/run/hyperkube/dns", InProcess: inProcess,
	}}}
}

// run runs a manager until the returned function is called or the test ends.
func (e env) run(enable ...string) (*Manager, func()) {
	e.Helper()
	inf := informers.NewSharedInformerFactory(e.Kube, 0)
	m, err := NewManager(Config{
		Reconciler: e.reconciler, Kube: e.Kube, ConfigMaps: inf.Core().V1().ConfigMaps().Informer(), Enable: enable, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		e.Fatal(err)
	}
	m.firstRetry, m.maxRetry = time.Millisecond, time.Millisecond
	ctx, cancel := context.WithCancel(e.Context())
	inf.StartWithContext(ctx)
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		inf.Shutdown()
		if err := <-done; err != nil {
			e.Error(err)
		}
	}
	e.Cleanup(stop)
	return m, stop
}

// accounts waits until the ServiceAccounts in kube-system have these names.
func (e env) accounts(want ...string) {
	e.Helper()
	testwait.Succeed(e, "service accounts", func() error {
		list, err := e.Kube.CoreV1().ServiceAccounts(metav1.NamespaceSystem).List(e.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var got []string
		for i := range list.Items {
			got = append(got, list.Items[i].Name)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("service accounts %v, want %v", got, want)
		}
		return nil
	})
}

// TestManager changes the settings of a running cluster, and starts the cluster again.
func TestManager(t *testing.T) {
	e := newEnv(t, false)
	m, stop := e.run()
	<-m.Ready()
	if !m.WasEnabled("dns") {
		t.Error("DNS is not enabled")
	}
	e.accounts("kube-dns", "metrics-server")
	if settings, err := ReadSettings(t.Context(), e.Kube); err != nil || settings != nil {
		t.Errorf("settings %v, %v", settings, err)
	}
	change := func(enabled bool, names ...string) {
		t.Helper()
		if err := ChangeSettings(t.Context(), e.Kube, enabled, names...); err != nil {
			t.Fatal(err)
		}
	}
	change(false, "metrics", "dns")
	e.accounts()
	change(true, "dns")
	e.accounts("kube-dns")
	// Enabling an enabled add-on restores its objects.
	dns, _ := manifests.FindAddon("dns")
	if err := applyset.WaitFor(t.Context(), e.Kube, SetOf(dns), true); err != nil {
		t.Fatal(err)
	}
	if err := e.Kube.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Delete(t.Context(), "kube-dns", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	change(true, "dns")
	e.accounts("kube-dns")
	stop()
	change(true, "metrics")
	change(false, "dns")
	m, stop = e.run()
	<-m.Ready()
	if m.WasEnabled("dns") {
		t.Error("DNS is enabled")
	}
	e.accounts("metrics-server")
	stop()
	m, _ = e.run("dns") // up --with dns
	<-m.Ready()
	e.accounts("kube-dns", "metrics-server")
	if _, err := Check([]string{"network"}, false); !errors.Is(err, errDisableRequired) {
		t.Errorf("disabling network: %v", err)
	}
	change(false, "network")
	if s, err := ReadSettings(t.Context(), e.Kube); err != nil || !s.Enabled(manifests.Addon{Name: "network", Required: "yes"}) {
		t.Errorf("settings disable network: %v, %v", s, err)
	}
}

// rejecting is a client that rejects applied objects of resources, as a webhook does whose pods do not run yet.
type rejecting struct {
	dynamic.Interface
	allowed *atomic.Bool
	// applied receives the resource of each allowed object, refused that of others if it has room.
	applied, refused chan string
}

func (r rejecting) Resource(gvr schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return rejectingResource{r.Interface.Resource(gvr), r.Interface.Resource(gvr), gvr.Resource, r}
}

type rejectingResource struct {
	dynamic.NamespaceableResourceInterface
	in       dynamic.ResourceInterface
	resource string
	client   rejecting
}

func (r rejectingResource) Namespace(ns string) dynamic.ResourceInterface {
	r.in = r.NamespaceableResourceInterface.Namespace(ns)
	return r
}

func (r rejectingResource) Get(ctx context.Context, name string, o metav1.GetOptions, sub ...string) (*unstructured.Unstructured, error) {
	return r.in.Get(ctx, name, o, sub...)
}

func (r rejectingResource) Create(ctx context.Context, obj *unstructured.Unstructured, o metav1.CreateOptions, sub ...string) (*unstructured.Unstructured, error) {
	return r.in.Create(ctx, obj, o, sub...)
}

func (r rejectingResource) Apply(ctx context.Context, name string, obj *unstructured.Unstructured, o metav1.ApplyOptions, sub ...string) (*unstructured.Unstructured, error) {
	if r.resource == "serviceaccounts" || r.resource == "deployments" {
		if !r.client.allowed.Load() {
			select {
			case r.client.refused <- r.resource:
			default:
			}
			return nil, errors.New("failed calling webhook")
		}
		r.client.applied <- r.resource
	}
	return r.in.Apply(ctx, name, obj, o, sub...)
}

// TestRetry rejects applied objects. Objects that exist from an earlier start do not delay readiness. Others delay
// it, and all are applied when the policy admits them.
func TestRetry(t *testing.T) {
	e := newEnv(t, true)
	client := rejecting{e.Dynamic, &atomic.Bool{}, make(chan string, 100), make(chan string, 1)}
	e.reconciler.Client.Dynamic = client
	m, stop := e.run()
	for range 3 {
		if got := <-client.refused; got != "serviceaccounts" {
			t.Errorf("%s was applied before the service account that it depends on", got)
		}
	}
	select {
	case <-m.Ready():
		t.Error("ready before the objects exist")
	default:
	}
	testwait.Succeed(t, "event", func() error {
		events, err := e.Kube.CoreV1().Events(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=hyperkube-addon-dns"})
		if err == nil && (len(events.Items) != 1 || !strings.Contains(events.Items[0].Message, "failed calling webhook")) {
			err = fmt.Errorf("events %v", events.Items)
		}
		return err
	})
	dns, _ := manifests.FindAddon("dns")
	problem := func(want string) {
		t.Helper()
		testwait.Succeed(t, "problem", func() error {
			s, err := e.Client().State(t.Context(), SetOf(dns))
			if text := Problem(s.Data); err == nil && (!strings.Contains(text, want) || want == "" && text != "") {
				err = fmt.Errorf("problem %q, want %q", text, want)
			}
			return err
		})
	}
	problem("failed calling webhook")
	client.allowed.Store(true)
	<-m.Ready()
	problem("")
	if a, b := <-client.applied, <-client.applied; a != "serviceaccounts" || b != "deployments" {
		t.Errorf("applied %s, then %s", a, b)
	}
	stop()
	client.allowed.Store(false)
	m, _ = e.run()
	<-m.Ready()
	testwait.Succeed(t, "description", func() error {
		if got := m.Describe(t.Context()); !strings.Contains(got, "failed calling webhook") {
			return fmt.Errorf("described as %q", got)
		}
		return nil
	})
}

// TestReplaced registers another metrics server, which replaces the add-on. Its objects survive even though they
// have the names of the add-on's objects.
func TestReplaced(t *testing.T) {
	for _, inProcess := range []bool{true, false} {
		e := newEnv(t, inProcess)
		metrics, _ := manifests.FindAddon("metrics")
		reconcile := func(enabled bool, replaced string) {
			t.Helper()
			s, err := e.reconciler.Reconcile(t.Context(), metrics, enabled)
			if err != nil || s.ReplacedBy != replaced {
				t.Errorf("status %+v, %v", s, err)
			}
		}
		service := func(want string) {
			t.Helper()
			got, err := e.Dynamic.Resource(apiServices).Get(t.Context(), metrics.APIService, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			text := "no APIService"
			if err == nil {
				text, _, _ = unstructured.NestedString(got.Object, "spec", "service", "name")
			}
			if text != want {
				t.Errorf("APIService of %q, want %q", text, want)
			}
		}
		own := map[bool]string{true: "", false: "metrics-server"}[inProcess]
		reconcile(true, "")
		service(own)
		other := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": metrics.APIService},
			"spec": map[string]any{"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": "kube-system", "name": "other"}},
		}}
		if _, err := e.Dynamic.Resource(apiServices).Apply(t.Context(), metrics.APIService, other, metav1.ApplyOptions{FieldManager: "helm", Force: true}); err != nil {
			t.Fatal(err)
		}
		reconcile(true, "kube-system/other")
		service("other")
		e.accounts()
		reconcile(false, "kube-system/other")
		service("other")
		if err := e.Dynamic.Resource(apiServices).Delete(t.Context(), metrics.APIService, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		reconcile(true, "")
		service(own)
		reconcile(false, "")
		service("no APIService")
	}
}

// TestFormer starts clusters in which an earlier version has applied objects without sets.
func TestFormer(t *testing.T) {
	e := newEnv(t, true)
	apply := func(name string, inProcess bool) {
		t.Helper()
		a, _ := manifests.FindAddon(name)
		v := e.reconciler.Values
		v.InProcess = inProcess
		objects, err := a.Objects(v)
		if err != nil {
			t.Fatal(err)
		}
		for _, obj := range objects {
			if err := Apply(t.Context(), e.Dynamic, obj); err != nil {
				t.Fatal(err)
			}
		}
	}
	apply("dns", true)
	apply("metrics", false)
	own := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "own", Namespace: metav1.NamespaceSystem}}
	if _, err := e.Kube.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.reconciler.FormerPods = true
	m, _ := e.run()
	<-m.Ready()
	e.accounts("kube-dns", "own")
	got, err := e.Dynamic.Resource(apiServices).Get(t.Context(), "v1beta1.metrics.k8s.io", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, found, _ := unstructured.NestedMap(got.Object, "spec", "service"); found {
		t.Error("the APIService has a service")
	}
	if err := ChangeSettings(t.Context(), e.Kube, false, "dns"); err != nil {
		t.Fatal(err)
	}
	e.accounts("own")
}
