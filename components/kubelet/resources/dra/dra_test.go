package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	drabeta "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"hyperkube/components/kubelet/pluginwatch"
	"hyperkube/internal/testing/testwait"
)

// fakeDriver prepares claims and records which claims are prepared.
type fakeDriver struct {
	draapi.UnimplementedDRAPluginServer
	mu       sync.Mutex
	calls    int
	prepared map[string]bool
	fail     error
}

func (f *fakeDriver) NodePrepareResources(_ context.Context, r *draapi.NodePrepareResourcesRequest) (*draapi.NodePrepareResourcesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	out := &draapi.NodePrepareResourcesResponse{Claims: map[string]*draapi.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		one := &draapi.NodePrepareResourceResponse{}
		if f.fail != nil {
			one.Error = f.fail.Error()
		} else {
			f.prepared[c.Uid] = true
			one.Devices = []*draapi.Device{
				{PoolName: "n", DeviceName: "gpu-0", RequestNames: []string{"gpu"}, CdiDeviceIds: []string{"example.com/gpu=0", "example.com/all=" + c.Name}},
				{PoolName: "n", DeviceName: "net-0", RequestNames: []string{"net/fast"}, CdiDeviceIds: []string{"example.com/net=0", "example.com/all=" + c.Name}},
			}
		}
		out.Claims[c.Uid] = one
	}
	return out, nil
}

func (f *fakeDriver) NodeUnprepareResources(_ context.Context, r *draapi.NodeUnprepareResourcesRequest) (*draapi.NodeUnprepareResourcesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &draapi.NodeUnprepareResourcesResponse{Claims: map[string]*draapi.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		one := &draapi.NodeUnprepareResourceResponse{}
		if f.fail != nil {
			one.Error = f.fail.Error()
		} else {
			delete(f.prepared, c.Uid)
		}
		out.Claims[c.Uid] = one
	}
	return out, nil
}

func (f *fakeDriver) is(prepared ...string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.prepared) != len(prepared) {
		return false
	}
	return !slices.ContainsFunc(prepared, func(uid string) bool { return !f.prepared[uid] })
}

func (f *fakeDriver) fails(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

func serve(t *testing.T, more ...func(*grpc.Server)) (*fakeDriver, pluginwatch.Plugin) {
	t.Helper()
	f := &fakeDriver{prepared: map[string]bool{}}
	p := pluginwatch.Plugin{Name: "gpu.example.com", Endpoint: filepath.Join(t.TempDir(), "s"), Versions: []string{draapi.DRAPluginService}}
	p.Socket = p.Endpoint
	l, err := net.Listen("unix", p.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	draapi.RegisterDRAPluginServer(s, f)
	for _, register := range more {
		register(s)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return f, p
}

func manager(t *testing.T, root string, kube kubernetes.Interface) *Manager {
	t.Helper()
	m, err := New(Config{Root: root, NodeName: "n", Kube: kube, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, m)
	return m
}

// stopAtEnd closes the connections of a manager at the end of the test, as Run does when it returns.
func stopAtEnd(t *testing.T, m *Manager) {
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}

func claim(name string, pods ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
		{Request: "gpu", Driver: "gpu.example.com", Pool: "n", Device: "gpu-0"}, {Request: "net/fast", Driver: "gpu.example.com", Pool: "n", Device: "net-0"},
	}}}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID(p)})
	}
	return c
}

func pod(name string, claims ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	c := v1.Container{Name: "c"}
	for _, claim := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: "my-" + claim, ResourceClaimName: &claim})
		c.Resources.Claims = append(c.Resources.Claims, v1.ResourceClaim{Name: "my-" + claim})
	}
	p.Spec.Containers = []v1.Container{c}
	return p
}

// TestExtended checks that a container gets exactly the devices of its extended resources from the
// claim that the scheduler created.
func TestExtended(t *testing.T) {
	controller := true
	made := claim("made", "p")
	made.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p", Controller: &controller}}
	kube := fake.NewClientset(made)
	driver, plugin := serve(t)
	m := manager(t, t.TempDir(), kube)
	if err := m.Register(t.Context(), plugin); err != nil {
		t.Fatal(err)
	}
	p := pod("p")
	p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "other"})
	p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "made", RequestMappings: []v1.ContainerExtendedResourceRequest{
		{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "gpu"},
	}}
	if err := m.Prepare(t.Context(), p); err != nil || !driver.is("uid-made") {
		t.Fatalf("%v %v", err, driver.prepared)
	}
	if uses := m.Uses(p, &p.Spec.Containers[0]); len(uses) != 1 || len(uses[0].Devices) != 1 || uses[0].Devices[0].Name != "gpu-0" {
		t.Errorf("%+v", uses)
	}
	if uses := m.Uses(p, &p.Spec.Containers[1]); len(uses) != 0 {
		t.Errorf("another container has %+v", uses)
	}
	// The claim does not belong to this pod.
	q := pod("q")
	q.Status.ExtendedResourceClaimStatus = p.Status.ExtendedResourceClaimStatus
	if err := m.Prepare(t.Context(), q); err == nil {
		t.Error("another pod has the claim")
	}
	if err := m.Release(t.Context(), "p"); err != nil || !driver.is() {
		t.Errorf("%v %v", err, driver.prepared)
	}
}

// TestOldDriver checks that a driver that supports only the previous API version is called with
// that version.
func TestOldDriver(t *testing.T) {
	kube := fake.NewClientset(claim("one", "p"))
	driver, plugin := serve(t)
	old := grpc.NewServer()
	drabeta.RegisterDRAPluginServer(old, drabeta.V1ServerWrapper{DRAPluginServer: driver})
	plugin.Endpoint, plugin.Versions = filepath.Join(t.TempDir(), "old"), []string{drabeta.DRAPluginService}
	l, err := net.Listen("unix", plugin.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- old.Serve(l) }()
	t.Cleanup(func() { old.Stop(); <-done })
	m := manager(t, t.TempDir(), kube)
	if err := m.Register(t.Context(), plugin); err != nil {
		t.Fatal(err)
	}
	if err := m.Prepare(t.Context(), pod("p", "one")); err != nil || !driver.is("uid-one") {
		t.Fatalf("prepared %v: %v", driver.prepared, err)
	}
	if err := m.Release(t.Context(), "p"); err != nil || driver.is("uid-one") {
		t.Fatalf("released: %v, %v", driver.prepared, err)
	}
}

// TestReplaced checks that a new claim waits while a driver still has devices prepared for the
// claim of the same name of a force-deleted pod, because drivers also identify claims by name.
func TestReplaced(t *testing.T) {
	ctx := t.Context()
	kube := fake.NewClientset(claim("one", "p"))
	driver, plugin := serve(t)
	m := manager(t, t.TempDir(), kube)
	if err := errors.Join(m.Register(ctx, plugin), m.Prepare(ctx, pod("p", "one"))); err != nil {
		t.Fatal(err)
	}
	recreated := claim("one", "q")
	recreated.UID = "uid-2"
	if err := kube.Tracker().Update(resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), recreated, "ns"); err != nil {
		t.Fatal(err)
	}
	q := pod("q", "one")
	if err := m.Prepare(ctx, q); err == nil || !strings.Contains(err.Error(), "old ResourceClaim with same name one and different UID uid-one still exists") {
		t.Errorf("with the old claim: %v", err)
	}
	if !driver.is("uid-one") {
		t.Errorf("prepared: %v", driver.prepared)
	}
	if err := errors.Join(m.Release(ctx, "p"), m.Prepare(ctx, q)); err != nil || !driver.is("uid-2") {
		t.Errorf("after the old claim: %v, %v", driver.prepared, err)
	}
}

// TestShared checks that a claim of two pods is prepared once and unprepared when the second pod is
// released, with a restart of the kubelet in between.
func TestShared(t *testing.T) {
	ctx := context.Background()
	root := t.TempDir()
	kube := fake.NewClientset(claim("one", "p", "q"))
	driver, plugin := serve(t)
	m := manager(t, root, kube)
	p, q := pod("p", "one"), pod("q", "one")
	if err := m.Prepare(ctx, p); err == nil || !strings.Contains(err.Error(), "DRA driver gpu.example.com is not registered") {
		t.Fatalf("without a driver: %v", err)
	}
	// A claim that no driver was called for is released without a driver.
	if err := m.Release(ctx, p.UID); err != nil || len(m.claims) != 0 {
		t.Fatalf("released without a driver: %v, %v", err, m.claims)
	}
	if err := m.Register(ctx, plugin); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(m.Prepare(ctx, p), m.Prepare(ctx, q)); err != nil {
			t.Fatal(err)
		}
	}
	if driver.calls != 1 || !driver.is("uid-one") {
		t.Fatalf("%d calls, prepared %v", driver.calls, driver.prepared)
	}
	want := []string{"example.com/gpu=0", "example.com/all=one", "example.com/net=0"}
	if got := m.CDI(p, &p.Spec.Containers[0]); !slices.Equal(got, want) {
		t.Errorf("CDI: %v", got)
	}
	for request, want := range map[string][]string{
		"gpu": {"example.com/gpu=0", "example.com/all=one"}, "net": {"example.com/net=0", "example.com/all=one"}, "none": nil,
	} {
		p.Spec.Containers[0].Resources.Claims[0].Request = request
		if got := m.CDI(p, &p.Spec.Containers[0]); !slices.Equal(got, want) {
			t.Errorf("CDI of request %s: %v", request, got)
		}
	}

	m = manager(t, root, kube)
	if err := m.Register(ctx, plugin); err != nil {
		t.Fatal(err)
	}
	p.Spec.Containers[0].Resources.Claims[0].Request = ""
	if got := m.CDI(p, &p.Spec.Containers[0]); !slices.Equal(got, want) {
		t.Errorf("CDI after a start: %v", got)
	}
	if err := m.Prepare(ctx, p); err != nil || driver.calls != 2 {
		t.Fatalf("after a start: %v, %d calls", err, driver.calls)
	}
	if err := m.Release(ctx, "p"); err != nil || !driver.is("uid-one") {
		t.Fatalf("%v, prepared %v", err, driver.prepared)
	}
	driver.fails(errors.New("busy"))
	if err := m.Release(ctx, "q"); err == nil || !strings.Contains(err.Error(), "NodeUnprepareResources failed for ResourceClaim one: busy") {
		t.Fatalf("%v", err)
	}
	driver.fails(nil)
	if err := m.Release(ctx, "q"); err != nil || !driver.is() || len(m.claims) != 0 {
		t.Fatalf("%v, prepared %v", err, driver.prepared)
	}
	if again := manager(t, root, kube); len(again.claims) != 0 {
		t.Errorf("kept: %v", again.claims)
	}
}

// TestFailed checks that a partially failed preparation is retried, and unprepared completely.
func TestFailed(t *testing.T) {
	ctx := context.Background()
	driver, plugin := serve(t)
	m := manager(t, t.TempDir(), fake.NewClientset(claim("one", "p"), claim("other", "q"), &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "open"}}))
	if err := m.Register(ctx, plugin); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"gone": `resourceclaims.resource.k8s.io "gone" not found`, "other": "is not allowed to use ResourceClaim other", "open": "is not allowed to use ResourceClaim open",
	} {
		if err := m.Prepare(ctx, pod("p", name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	driver.fails(errors.New("no such luck"))
	if err := m.Prepare(ctx, pod("p", "one")); err == nil || !strings.Contains(err.Error(), "NodePrepareResources failed for ResourceClaim one: no such luck") {
		t.Fatalf("%v", err)
	}
	driver.fails(nil)
	if err := m.Reconcile(ctx, func(types.UID) bool { return false }); err != nil || len(m.claims) != 0 {
		t.Fatalf("%v, %v", err, m.claims)
	}
}

// waitConnected waits until the driver is or is not connected, and the timer for the removal of its
// devices is or is not running accordingly.
func waitConnected(t *testing.T, m *Manager, name string, want bool) {
	t.Helper()
	testwait.Until(t, fmt.Sprintf("whether the driver answers to be %v", want), func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		d := m.drivers[name]
		return d.connected() == want && (d.removal == nil) == want
	})
}

// TestServesLater checks that a driver may register before it serves, and may stop without removing
// its registration socket.
func TestServesLater(t *testing.T) {
	plugin := pluginwatch.Plugin{Name: "gpu.example.com", Endpoint: filepath.Join(t.TempDir(), "s"), Versions: []string{draapi.DRAPluginService}, Socket: "reg"}
	m := manager(t, t.TempDir(), fake.NewClientset())
	if err := m.Register(t.Context(), plugin); err != nil {
		t.Fatal(err)
	}
	waitConnected(t, m, plugin.Name, false)
	for range 2 {
		l, err := net.Listen("unix", plugin.Endpoint)
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		waitConnected(t, m, plugin.Name, true)
		s.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
		waitConnected(t, m, plugin.Name, false)
	}
	m.Deregister(plugin)
	m.watches.Wait()
}

// TestGone checks that the ResourceSlices of a driver are removed some time after the driver has
// stopped.
func TestGone(t *testing.T) {
	ctx := context.Background()
	node := "n"
	slice := func(driver string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &node}}
	}
	_, plugin := serve(t)
	kube := fake.NewClientset(slice("gpu.example.com"), slice("old.example.com"))
	m := manager(t, t.TempDir(), kube)
	if err := m.Register(ctx, plugin); err != nil {
		t.Fatal(err)
	}
	if err := m.forgetOld(ctx); err != nil {
		t.Fatal(err)
	}
	list, err := kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Spec.Driver != "gpu.example.com" {
		t.Fatalf("%v, %v", err, list.Items)
	}
	m.Deregister(plugin)
	if m.isRegistered(plugin.Name) || m.drivers[plugin.Name].removal == nil {
		t.Fatal("the call does not wait for the driver")
	}
	if err := m.Register(ctx, plugin); err != nil {
		t.Fatal(err)
	}
	waitConnected(t, m, plugin.Name, true)
	for _, versions := range [][]string{nil, {"v2.DRAPlugin"}} {
		if err := m.Register(ctx, pluginwatch.Plugin{Name: "x", Versions: versions}); err == nil {
			t.Errorf("versions %v were accepted", versions)
		}
	}
}

// TestFinallyRemoved checks that the removal of ResourceSlices is retried while the API server fails,
// and canceled if the driver is back.
func TestFinallyRemoved(t *testing.T) {
	_, plugin := serve(t)
	kube := fake.NewClientset()
	tries := make(chan struct{}, 9)
	kube.PrependReactor("delete-collection", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		tries <- struct{}{}
		if len(tries) == 1 {
			return true, nil, errors.New("not now")
		}
		return true, nil, nil
	})
	m := manager(t, t.TempDir(), kube)
	if err := m.Register(t.Context(), plugin); err != nil {
		t.Fatal(err)
	}
	waitConnected(t, m, plugin.Name, true)
	m.removeSlicesRetry(plugin.Name, time.Millisecond)
	if len(tries) > 0 {
		t.Error("resource slices of a registered driver were deleted")
	}
	m.Deregister(plugin)
	m.removeSlicesRetry(plugin.Name, time.Millisecond)
	testwait.Until(t, "another try", func() bool { return len(tries) >= 2 })
}

// TestOccupied checks that an operation on claims of one pod waits for an operation on the same
// claims for another pod.
func TestOccupied(t *testing.T) {
	m := manager(t, t.TempDir(), fake.NewClientset([]runtime.Object{}...))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := m.setBusy(ctx, []types.UID{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { got <- m.setBusy(ctx, []types.UID{"b", "c"}) }()
	if err := m.setBusy(ctx, []types.UID{"d"}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-got:
		t.Fatalf("did not wait: %v", err)
	default:
	}
	m.vacate([]types.UID{"a", "b"})
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := m.setBusy(ctx, []types.UID{"c"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":"v1","claims":[{"uid":"u","namespace":"n","name":"c","pods":["p"],"devices":{"d":[{"pool":"p","name":"x","requests":["r"],"cdi":["a/b=c"]}]}}]}`))
	f.Add([]byte(`{"version":"v1","claims":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		claims, err := parse(data)
		if err != nil {
			return
		}
		for uid, c := range claims {
			if c.UID != uid || c.Devices == nil {
				t.Errorf("%q: %+v", uid, c)
			}
		}
	})
}
