package devicemanager

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"hyperkube/components/kubelet/resources/numa"
	"hyperkube/components/kubelet/resources/topology"
)

const testResource = "example.com/thing"

// plugin is a device plugin that reports the devices that are sent to it.
type plugin struct {
	api.UnimplementedDevicePluginServer
	lists   chan []*api.Device
	started chan []string
	refuses error // error of GetDevicePluginOptions
	socket  string
}

func (p *plugin) endpoint() string { return cmp.Or(p.socket, "thing.sock") }

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}, p.refuses
}

func (p *plugin) ListAndWatch(_ *api.Empty, s grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		select {
		case list := <-p.lists:
			if err := s.Send(&api.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation prefers the last devices.
func (p *plugin) GetPreferredAllocation(_ context.Context, r *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	ids := slices.Clone(r.ContainerRequests[0].AvailableDeviceIDs)
	slices.Reverse(ids)
	return &api.PreferredAllocationResponse{ContainerResponses: []*api.ContainerPreferredAllocationResponse{{DeviceIDs: ids[:r.ContainerRequests[0].AllocationSize]}}}, nil
}

func (p *plugin) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{{
		Envs: map[string]string{"THINGS": strings.Join(r.ContainerRequests[0].DevicesIds, ",")},
	}}}, nil
}

func (p *plugin) PreStartContainer(_ context.Context, r *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	p.started <- r.DevicesIds
	return &api.PreStartContainerResponse{}, nil
}

// serve runs the plugin and registers it. The returned function stops it.
func (p *plugin) serve(t *testing.T, dir string) func() {
	t.Helper()
	stop, err := p.register(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

func (p *plugin) register(t *testing.T, dir string) (func(), error) {
	t.Helper()
	path := filepath.Join(dir, p.endpoint())
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	api.RegisterDevicePluginServer(s, p)
	go func() { _ = s.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(t.Context(), &api.RegisterRequest{
		Version: api.Version, Endpoint: p.endpoint(), ResourceName: testResource,
	}, grpc.WaitForReady(true))
	return s.Stop, err
}

func pod(name string, containers ...int64) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.UID = name, types.UID(name)
	for i, n := range containers {
		c := v1.Container{Name: string(rune('a' + i))}
		c.Resources.Limits = v1.ResourceList{testResource: *resource.NewQuantity(n, resource.DecimalSI)}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

func devices(health ...string) []*api.Device {
	var out []*api.Device
	for i, h := range health {
		out = append(out, &api.Device{ID: string(rune('0' + i)), Health: h})
	}
	return out
}

// allocate allocates devices to a pod.
func allocate(ctx context.Context, m *Manager, p *v1.Pod, nodes numa.Set) error {
	var err error
	for c := range topology.Containers(p) {
		if err == nil {
			err = m.Allocate(ctx, p, c, nodes)
		}
	}
	return errors.Join(err, m.Settle(p, err == nil))
}

func TestDevices(t *testing.T) {
	dir, err := os.MkdirTemp("", "devices") // short path because socket paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var active []*v1.Pod
	changed := make(chan []types.UID, 100)
	cfg := Config{
		Dir: dir, Active: func() []*v1.Pod { return active }, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Changed: func(pods []types.UID) { changed <- pods },
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	// The registration of a plugin that does not return its options fails.
	refuse, err := (&plugin{refuses: errors.New("not now")}).register(t, dir)
	if refuse(); err == nil || !strings.Contains(err.Error(), "failed to get device plugin options: ") || !strings.Contains(err.Error(), "not now") {
		t.Errorf("registered: %v", err)
	}
	p := &plugin{lists: make(chan []*api.Device, 1), started: make(chan []string, 1)}
	stop := p.serve(t, dir)
	p.lists <- devices(api.Healthy, api.Healthy, api.Healthy, api.Unhealthy)
	wait := func() []types.UID {
		select {
		case pods := <-changed:
			return pods
		case <-time.After(2 * time.Minute):
			t.Fatal("nothing has changed")
			return nil
		}
	}
	wait()
	count := func(want, healthy int64) {
		t.Helper()
		all, well := m.Capacity()
		a, b := all[testResource], well[testResource]
		if a.Value() != want || b.Value() != healthy {
			t.Errorf("%d devices, %d healthy; want %d, %d", a.Value(), b.Value(), want, healthy)
		}
	}
	count(4, 3)

	first := pod("first", 1, 1)
	if err := allocate(ctx, m, first, 0); err != nil {
		t.Fatal(err)
	}
	active = []*v1.Pod{first}
	grants, err := m.Grants(ctx, first, &first.Spec.Containers[0])
	if err != nil || grants[testResource].Response.Envs["THINGS"] != "2" {
		t.Errorf("allocated %v, %v", grants, err)
	}
	if got := <-p.started; !slices.Equal(got, []string{"2"}) {
		t.Errorf("prepared %v", got)
	}
	second := pod("second", 2)
	if err := allocate(ctx, m, second, 0); err == nil || err.Error() != "requested number of devices unavailable for example.com/thing. Requested: 2, Available: 1" {
		t.Errorf("too many: %v", err)
	}
	if len(m.Devices("second", "a")) != 0 {
		t.Error("the failed container has devices")
	}
	active = nil // the first pod has terminated
	if err := allocate(ctx, m, second, 0); err != nil {
		t.Fatal(err)
	}
	active = []*v1.Pod{second}
	p.lists <- devices(api.Healthy, api.Healthy, api.Unhealthy, api.Unhealthy)
	if pods := wait(); !slices.Equal(pods, []types.UID{"second"}) {
		t.Errorf("notified of pods %v", pods)
	}
	health := m.Health("second", "a")
	if len(health) != 1 || len(health[0].Resources) != 2 || health[0].Resources[0].Health == health[0].Resources[1].Health {
		t.Errorf("health %v", health)
	}
	for _, d := range health[0].Resources {
		want := v1.ResourceHealthStatusHealthy
		if d.ResourceID == "2" {
			want = v1.ResourceHealthStatusUnhealthy
		}
		if d.Health != want {
			t.Errorf("device %s is reported as %s, want %s", d.ResourceID, d.Health, want)
		}
	}

	// The plugin stops, then the kubelet; both start again.
	stop()
	wait()
	count(4, 0)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	again, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := again.Devices("second", "a")[testResource]; len(got) != 2 {
		t.Errorf("restored %v", got)
	}
	if grants, err := again.Grants(t.Context(), second, &second.Spec.Containers[0]); err != nil || len(grants) != 1 {
		t.Errorf("allocated again %v, %v", grants, err)
	}
}

// TestKnownBeforeThePlugin checks that a kubelet that is killed before it has allocated a device
// has recorded the devices: after the restart, a pod that starts before the plugin registers is
// rejected, and does not run without its devices.
func TestKnownBeforeThePlugin(t *testing.T) {
	dir, err := os.MkdirTemp("", "devices") // short path because socket paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	changed := make(chan struct{}, 100)
	cfg := Config{
		Dir: dir, Active: func() []*v1.Pod { return nil }, Log: slog.New(slog.DiscardHandler),
		Changed: func([]types.UID) { changed <- struct{}{} },
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	p := &plugin{lists: make(chan []*api.Device, 1)}
	stop := p.serve(t, dir)
	defer stop()
	p.lists <- devices(api.Healthy, api.Healthy)
	<-changed
	// A terminated pod had all devices.
	earlier := pod("earlier", 2)
	if err := allocate(ctx, m, earlier, 0); err != nil {
		t.Fatal(err)
	}
	if err := m.Release(earlier.UID); err != nil {
		t.Fatal(err)
	}
	if len(m.Health(earlier.UID, "a")) != 1 {
		t.Error("devices of a terminated pod are not reported")
	}
	// This is the checkpoint if the kubelet is killed now.
	const name = "kubelet_internal_checkpoint"
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	if err := os.WriteFile(filepath.Join(copied, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	cfg.Dir = copied
	again, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	const want = "no healthy devices present; cannot allocate unhealthy devices " + testResource
	if err := allocate(t.Context(), again, pod("early", 1), 0); err == nil || err.Error() != want {
		t.Errorf("before the plugin registered: %v", err)
	}
	all, healthy := again.Capacity()
	for what, list := range map[string]v1.ResourceList{"all": all, "healthy": healthy} {
		if n, ok := list[testResource]; !ok || !n.IsZero() {
			t.Errorf("before the plugin registered the node has %v of %s (listed: %v)", n, what, ok)
		}
	}
	if got := again.Devices("earlier", "a"); len(got) != 0 {
		t.Errorf("the next manager assigns %v to a terminated pod", got)
	}
}

func TestReuseOfInitContainers(t *testing.T) {
	m := &Manager{
		cfg:       Config{Dir: t.TempDir(), Active: func() []*v1.Pod { return nil }, Log: slog.New(slog.NewTextHandler(io.Discard, nil))},
		resources: map[string]*registeredPlugin{testResource: {client: direct{&plugin{}}, options: &api.DevicePluginOptions{}, devices: map[string]*api.Device{}}},
		grants:    map[types.UID]map[string]map[string]*Grant{},
	}
	for _, d := range devices(api.Healthy, api.Healthy) {
		m.resources[testResource].devices[d.ID] = d
	}
	p := pod("p", 2)
	p.Spec.InitContainers = pod("", 2).Spec.Containers
	p.Spec.InitContainers[0].Name = "init"
	if err := allocate(t.Context(), m, p, 0); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.Devices("p", "init")[testResource], m.Devices("p", "a")[testResource]) {
		t.Error("the init container's devices are not reused")
	}
}

func TestNodes(t *testing.T) {
	m := &Manager{
		cfg:       Config{Dir: t.TempDir(), Nodes: 3, Active: func() []*v1.Pod { return nil }, Log: slog.New(slog.NewTextHandler(io.Discard, nil))},
		resources: map[string]*registeredPlugin{testResource: {client: direct{&plugin{}}, options: &api.DevicePluginOptions{GetPreferredAllocationAvailable: true}, devices: map[string]*api.Device{}}},
		grants:    map[types.UID]map[string]map[string]*Grant{},
	}
	for i, d := range devices(api.Healthy, api.Healthy, api.Healthy, api.Unhealthy, api.Healthy) {
		if i < 4 {
			d.Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(i / 2)}}}
		}
		m.resources[testResource].devices[d.ID] = d
	}
	for n, want := range map[int64][]topology.Hint{
		1: {{Nodes: 1, Preferred: true}, {Nodes: 2, Preferred: true}, {Nodes: 3}},
		2: {{Nodes: 1, Preferred: true}, {Nodes: 3}},
		3: {{Nodes: 3, Preferred: true}},
		4: {}, // one of the devices is not on a NUMA node
		6: {},
	} {
		p := pod("p", n)
		for _, got := range []topology.Hints{m.Hints(p, &p.Spec.Containers[0]), m.PodHints(p)} {
			if !slices.Equal(got[testResource], want) || got[testResource] == nil {
				t.Errorf("%d: %v, want %v", n, got, want)
			}
		}
	}
	p := pod("p", 1, 2)
	if err := allocate(t.Context(), m, p, 2); err != nil {
		t.Fatal(err)
	}
	// The plugin prefers the last devices, but only among those left to choose.
	if a, b := m.Devices("p", "a")[testResource], m.Devices("p", "b")[testResource]; !slices.Equal(a, []string{"2"}) || len(b) != 2 {
		t.Errorf("a has %v, b has %v", a, b)
	}
	// When the pod is admitted again after a restart, as static pods are, it keeps its devices and
	// needs no free ones.
	if got := m.Hints(p, &p.Spec.Containers[0])[testResource]; !slices.Equal(got, []topology.Hint{{Nodes: 2, Preferred: true}, {Nodes: 3}}) {
		t.Errorf("hints for container a: %v", got)
	}
	if got := m.Hints(p, &pod("p", 2).Spec.Containers[0])[testResource]; got == nil || len(got) > 0 {
		t.Errorf("hints for another amount: %v", got)
	}
	one := pod("p", 1)
	m.grants["one"] = map[string]map[string]*Grant{"a": {testResource: {IDs: []string{"2"}}}}
	if one.UID = "one"; !slices.Equal(m.PodHints(one)[testResource], []topology.Hint{{Nodes: 2, Preferred: true}, {Nodes: 3}}) {
		t.Errorf("hints for the pod: %v", m.PodHints(one)[testResource])
	}
}

// direct calls a plugin without a connection.
type direct struct{ p *plugin }

func (d direct) GetDevicePluginOptions(context.Context, *api.Empty, ...grpc.CallOption) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (d direct) ListAndWatch(context.Context, *api.Empty, ...grpc.CallOption) (grpc.ServerStreamingClient[api.ListAndWatchResponse], error) {
	return nil, io.EOF
}

func (d direct) GetPreferredAllocation(ctx context.Context, r *api.PreferredAllocationRequest, _ ...grpc.CallOption) (*api.PreferredAllocationResponse, error) {
	return d.p.GetPreferredAllocation(ctx, r)
}

func (d direct) Allocate(ctx context.Context, r *api.AllocateRequest, _ ...grpc.CallOption) (*api.AllocateResponse, error) {
	return d.p.Allocate(ctx, r)
}

func (d direct) PreStartContainer(ctx context.Context, r *api.PreStartContainerRequest, _ ...grpc.CallOption) (*api.PreStartContainerResponse, error) {
	return d.p.PreStartContainer(ctx, r)
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"example.com/thing": true, "cpu": false, "kubernetes.io/thing": false, "a.kubernetes.io/x": false,
		"requests.example.com/x": false, "example.com/": false, "example.com/a/b": false,
	} {
		if (validateResourceName(name) == nil) != ok {
			t.Errorf("%s: %v", name, validateResourceName(name))
		}
	}
}
