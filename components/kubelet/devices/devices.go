// Package devices gives pods the devices of device plugins: it takes in plugins
// that register, follows which devices they have, and allocates them.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
package devices

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"hyperkube/components/kubelet/numa"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/components/kubelet/topology"
)

// gone is how long the devices of a plugin that has ended are still told of, as
// unhealthy ones, for it may come back.
const gone = 5 * time.Minute

// Config of a Manager. All fields must be filled.
type Config struct {
	// Dir is where plugins find the kubelet's socket and have their own.
	Dir string
	// Nodes are the machine's NUMA nodes.
	Nodes numa.Set
	// Active returns the pods that have not ended: devices of others are free,
	// once Known tells that these are all. Nil: they always are.
	Active func() []*v1.Pod
	Known  func() bool
	// Changed is called when there are more or fewer devices, and with whose
	// devices' health has changed.
	Changed func(pods []types.UID)
	Log     *slog.Logger
	// Metrics counts what is done; may be nil.
	Metrics *telemetry.Metrics
}

// Manager knows all devices and who has them. Its methods are safe for several
// goroutines.
type Manager struct {
	cfg Config

	allocating sync.Mutex // held while devices are chosen and allocated

	mu        sync.Mutex // guards what follows
	resources map[string]*pool
	// spare are plugins of resources that others have registered for since, the oldest
	// first: one of them takes over when the newest ends.
	spare map[string][]*pool
	given map[types.UID]map[string]map[string]*Grant // by pod, container, resource
	// ended are those of them of which nothing runs any more: what they had is told
	// until they are gone, but not remembered.
	ended map[types.UID]bool
}

// pool is the devices of one resource.
type pool struct {
	client  api.DevicePluginClient // nil while it is only known of from an earlier kubelet
	conn    *grpc.ClientConn
	options *api.DevicePluginOptions
	devices map[string]*api.Device
	ended   time.Time // zero while the plugin is there
	// endpoint is the plugin's socket; told: it has said which devices it has.
	endpoint string
	told     bool
}

// Grant is what one container has of one resource.
type Grant struct {
	IDs []string
	// Response is what the plugin wants to be done for them.
	Response *api.ContainerAllocateResponse
}

// New makes a Manager that remembers what was given before.
func New(cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg, resources: map[string]*pool{}, spare: map[string][]*pool{}, given: map[types.UID]map[string]map[string]*Grant{}, ended: map[types.UID]bool{}}
	if err := m.load(); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *Manager) checkpoint() string {
	return filepath.Join(m.cfg.Dir, "kubelet_internal_checkpoint")
}

// New tells whether nobody has ever recorded devices here: the node was set up anew,
// and what its Node says of extended resources is of another machine.
func (m *Manager) New() bool {
	_, err := os.Stat(m.checkpoint())
	return errors.Is(err, os.ErrNotExist)
}

// Capacity is how many devices there are, and how many of them are healthy. A
// resource whose plugin is long gone, or that an earlier kubelet knew and no plugin
// has come for since, has none, of which the node must be told.
func (m *Manager) Capacity() (all, healthy v1.ResourceList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all, healthy = v1.ResourceList{}, v1.ResourceList{}
	for name, p := range m.resources {
		n, well := int64(len(p.devices)), int64(0)
		if p.client == nil || !p.ended.IsZero() && time.Since(p.ended) > gone {
			n = 0
		}
		for _, d := range p.devices {
			if n > 0 && d.Health == api.Healthy {
				well++
			}
		}
		all[v1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
		healthy[v1.ResourceName(name)] = *resource.NewQuantity(well, resource.DecimalSI)
	}
	return all, healthy
}

// healthy tells whether any device is.
func (p *pool) healthy() bool {
	for _, d := range p.devices {
		if d.Health == api.Healthy {
			return true
		}
	}
	return false
}

// ids are what is granted; g may be nil.
func (g *Grant) ids() []string {
	if g == nil {
		return nil
	}
	return g.IDs
}

// Allocate implements topology.Provider. Devices of init containers that end are
// used again by those that come after them.
func (m *Manager) Allocate(ctx context.Context, pod *v1.Pod, c *v1.Container, nodes numa.Set) error {
	if !m.needs(c) {
		return nil
	}
	m.allocating.Lock()
	defer m.allocating.Unlock()
	m.forget(pod.UID)
	for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
		q := c.Resources.Limits[name]
		if n := int(q.Value()); n > 0 && m.known(string(name)) && !claimed(pod, c, name) {
			if err := m.allocate(ctx, pod, c.Name, string(name), n, nodes); err != nil {
				return err
			}
		}
	}
	return nil
}

// Settle implements topology.Provider.
func (m *Manager) Settle(pod *v1.Pod, ok bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return topology.Settle(m.given, pod.UID, ok, m.save)
}

// again allocates to a pod that was admitted what it has not.
func (m *Manager) again(ctx context.Context, pod *v1.Pod) error {
	for c := range topology.Containers(pod) {
		if err := m.Allocate(ctx, pod, c, 0); err != nil {
			return err
		}
	}
	return m.Settle(pod, true)
}

// claimed tells whether a container has what it asks for of a resource by a claim
// that the scheduler made, and not of a plugin.
func claimed(pod *v1.Pod, c *v1.Container, name v1.ResourceName) bool {
	s := pod.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(r v1.ContainerExtendedResourceRequest) bool {
		return r.ContainerName == c.Name && r.ResourceName == string(name)
	})
}

// needs tells whether the container has limits of a resource that is known.
func (m *Manager) needs(c *v1.Container) bool {
	for name := range c.Resources.Limits {
		if m.known(string(name)) {
			return true
		}
	}
	return false
}

// wants tells whether the pod has limits of a resource that is known.
func (m *Manager) wants(pod *v1.Pod) bool {
	for c := range topology.Containers(pod) {
		if m.needs(c) {
			return true
		}
	}
	return false
}

func (m *Manager) known(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resources[name] != nil
}

// forget frees the devices of pods that have ended; but is one that has not.
func (m *Manager) forget(but types.UID) {
	// Not under mu: who is asked has locks of its own.
	gone := topology.Gone(m.cfg.Active, m.cfg.Known, but)
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.given, func(uid types.UID, _ map[string]map[string]*Grant) bool { return gone(uid) })
	maps.DeleteFunc(m.ended, func(uid types.UID, _ bool) bool { return m.given[uid] == nil })
}

// free are the devices of a resource that are healthy and nobody's. The caller
// holds mu.
func (m *Manager) free(name string) []string {
	taken := map[string]bool{}
	for _, containers := range m.given {
		for _, byName := range containers {
			if g := byName[name]; g != nil {
				for _, id := range g.IDs {
					taken[id] = true
				}
			}
		}
	}
	var out []string
	p := m.resources[name]
	for _, id := range slices.Sorted(maps.Keys(p.devices)) {
		if p.devices[id].Health == api.Healthy && !taken[id] {
			out = append(out, id)
		}
	}
	return out
}

// reusable are the devices of a pod's containers that end before others start,
// unless another has them again already. The caller holds mu.
func (m *Manager) reusable(pod *v1.Pod, name string) []string {
	out := map[string]bool{}
	for c := range topology.Containers(pod) {
		if g := m.given[pod.UID][c.Name][name]; g != nil {
			for _, id := range g.IDs {
				if out[id] = true; !topology.Passing(pod, c.Name) {
					delete(out, id)
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(out))
}

// allocate gives one container n devices of a resource, those on nodes first.
// The caller holds allocating.
func (m *Manager) allocate(ctx context.Context, pod *v1.Pod, container, name string, n int, nodes numa.Set) error {
	m.mu.Lock()
	if m.given[pod.UID][container][name] != nil {
		m.mu.Unlock()
		return nil
	}
	p := m.resources[name]
	if !p.healthy() {
		m.mu.Unlock()
		return fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
	}
	must := m.reusable(pod, name)
	must = must[:min(n, len(must))]
	free := m.free(name)
	near := len(free)
	if nodes != 0 {
		rank := func(id string) int {
			switch on := nodesOf(p.devices[id]); {
			case on&nodes != 0:
				return 0
			case on != 0:
				return 1
			}
			return 2
		}
		slices.SortStableFunc(free, func(a, b string) int { return rank(a) - rank(b) })
		if near = slices.IndexFunc(free, func(id string) bool { return rank(id) > 0 }); near < 0 {
			near = len(free)
		}
	}
	client, options := p.client, p.options
	m.mu.Unlock()
	need := n - len(must)
	if need > len(free) {
		return fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, need, len(free))
	}
	ids := slices.Concat(must, free[:need])
	// The plugin chooses among those that are near, or else what is added to all
	// of those.
	if options.GetGetPreferredAllocationAvailable() {
		switch {
		case need > 0 && need < near:
			ids = m.preferred(ctx, client, slices.Concat(must, free[:near]), must, n, ids)
		case need > near && need < len(free):
			ids = m.preferred(ctx, client, slices.Concat(must, free), slices.Concat(must, free[:near]), n, ids)
		}
	}
	began := time.Now()
	resp, err := client.Allocate(ctx, &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
	m.cfg.Metrics.DevicesAllocated(name, time.Since(began))
	if err != nil {
		return fmt.Errorf("rpc call to %s failed: %w", name, err)
	}
	if len(resp.ContainerResponses) != 1 {
		return fmt.Errorf("no containers return in allocation response %v", resp)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.given[pod.UID] == nil {
		m.given[pod.UID] = map[string]map[string]*Grant{}
	}
	if m.given[pod.UID][container] == nil {
		m.given[pod.UID][container] = map[string]*Grant{}
	}
	m.given[pod.UID][container][name] = &Grant{IDs: ids, Response: resp.ContainerResponses[0]}
	return nil
}

// preferred asks the plugin which devices go well together; what it says is
// taken if it is of what there is, and else as many as it says rightly.
func (m *Manager) preferred(ctx context.Context, client api.DevicePluginClient, available, must []string, n int, otherwise []string) []string {
	resp, err := client.GetPreferredAllocation(ctx, &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: int32(n),
	}}})
	if err != nil || len(resp.ContainerResponses) != 1 {
		m.cfg.Log.Warn("asking a device plugin what it prefers failed", "error", err)
		return otherwise
	}
	out := slices.Clone(must)
	for _, id := range slices.Concat(resp.ContainerResponses[0].DeviceIDs, otherwise) {
		if len(out) < n && slices.Contains(available, id) && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// Grants returns what a container has, by resource; it must not be changed. A
// device that the plugin wants to make ready before each start is made so.
func (m *Manager) Grants(ctx context.Context, pod *v1.Pod, c *v1.Container) (map[string]*Grant, error) {
	if !m.wants(pod) {
		m.mu.Lock()
		none := len(m.given[pod.UID][c.Name]) == 0
		m.mu.Unlock()
		if none {
			return nil, nil
		}
	}
	for name, q := range c.Resources.Limits {
		m.mu.Lock()
		missing := m.resources[string(name)] != nil && q.Value() > 0 && !claimed(pod, c, name) && m.given[pod.UID][c.Name][string(name)] == nil
		m.mu.Unlock()
		if missing {
			// The plugin came, or the record went, after the pod was admitted.
			if err := m.again(ctx, pod); err != nil {
				return nil, err
			}
		}
	}
	m.mu.Lock()
	grants := maps.Clone(m.given[pod.UID][c.Name])
	m.mu.Unlock()
	for name, g := range grants {
		m.mu.Lock()
		p := m.resources[name]
		m.mu.Unlock()
		if p == nil || !p.options.GetPreStartRequired() {
			continue
		}
		call, cancel := context.WithTimeout(ctx, api.KubeletPreStartContainerRPCTimeoutInSecs*time.Second)
		_, err := p.client.PreStartContainer(call, &api.PreStartContainerRequest{DevicesIds: g.IDs})
		cancel()
		if err != nil {
			return nil, fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
		}
	}
	return grants, nil
}

// Health tells how a container's devices are; empty when it has none.
func (m *Manager) Health(pod types.UID, container string) []v1.ResourceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []v1.ResourceStatus
	grants := m.given[pod][container]
	for _, name := range slices.Sorted(maps.Keys(grants)) {
		s := v1.ResourceStatus{Name: v1.ResourceName(name)}
		for _, id := range grants[name].IDs {
			health := v1.ResourceHealthStatusUnknown
			if p := m.resources[name]; p != nil && p.devices[id] != nil {
				health = v1.ResourceHealthStatusUnhealthy
				if p.devices[id].Health == api.Healthy {
					health = v1.ResourceHealthStatusHealthy
				}
			}
			s.Resources = append(s.Resources, v1.ResourceHealth{ResourceID: v1.ResourceID(id), Health: health})
		}
		out = append(out, s)
	}
	return out
}

// Devices returns the IDs that a container has, by resource.
func (m *Manager) Devices(pod types.UID, container string) map[string][]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string][]string{}
	for name, g := range m.given[pod][container] {
		out[name] = slices.Clone(g.IDs)
	}
	return out
}

// All returns all devices that are healthy, by resource; they are shared.
func (m *Manager) All() map[string][]*api.Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string][]*api.Device{}
	for name, p := range m.resources {
		for _, id := range slices.Sorted(maps.Keys(p.devices)) {
			if p.devices[id].Health == api.Healthy {
				out[name] = append(out[name], p.devices[id])
			}
		}
	}
	return out
}

// holders are the pods that have devices of a resource. The caller holds mu.
func (m *Manager) holders(name string) []types.UID {
	var out []types.UID
	for uid, containers := range m.given {
		for _, grants := range containers {
			if grants[name] != nil {
				out = append(out, uid)
				break
			}
		}
	}
	return out
}

// same compares devices.
func same(a, b map[string]*api.Device) bool {
	return maps.EqualFunc(a, b, func(x, y *api.Device) bool { return proto.Equal(x, y) })
}
