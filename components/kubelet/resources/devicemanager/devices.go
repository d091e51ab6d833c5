// Package devicemanager implements the device manager: it accepts registrations of device plugins,
// watches their devices, and allocates devices to containers.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
package devicemanager

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

	"hyperkube/components/kubelet/resources/numa"
	"hyperkube/components/kubelet/resources/topology"
	"hyperkube/components/kubelet/telemetry"
)

// pluginGracePeriod is how long the devices of a stopped plugin are still reported, as unhealthy, because the
// plugin may restart.
const pluginGracePeriod = 5 * time.Minute

// Config is the configuration of a Manager. All fields are required unless their comment says
// otherwise.
type Config struct {
	// Dir is the directory of the kubelet's registration socket and the plugins' sockets.
	Dir string
	// Nodes are the machine's NUMA nodes.
	Nodes numa.Set
	// Active returns the pods that have not terminated. Devices of other pods are freed once Known
	// reports that the list is complete. If Known is nil, it always is.
	Active func() []*v1.Pod
	Known  func() bool
	// Changed is called when the devices of a resource or their health have changed, with the pods that use
	// devices of the resource.
	Changed func(pods []types.UID)
	Log     *slog.Logger
	// Metrics counts registrations and allocations. It may be nil.
	Metrics *telemetry.Devices
}

// Manager tracks all devices of device plugins and their allocations to containers. Its methods are safe for
// concurrent use.
//
// Size: half of the methods are those of the interfaces for admission, the topology manager, container
// starts, the node status and the pod resources API, which read the same allocations under one lock.
type Manager struct {
	cfg Config

	allocating sync.Mutex // held while devices are chosen and allocated

	mu sync.Mutex // guards the following fields
	// resources are the active plugins by resource.
	resources map[string]*registeredPlugin
	// superseded are the running plugins of resources for which a newer plugin has registered,
	// oldest first. The last one takes over when the newest plugin stops.
	superseded map[string][]*registeredPlugin
	grants     map[types.UID]map[string]map[string]*Grant // by pod, container and resource
	// terminated are the pods in grants of which no process runs any more. Their devices are reported until
	// the pods are deleted, but are not written to the checkpoint.
	terminated map[types.UID]bool
}

// registeredPlugin is a device plugin and its devices of one resource.
type registeredPlugin struct {
	client  api.DevicePluginClient // nil if only the checkpoint contains the resource
	conn    *grpc.ClientConn
	options *api.DevicePluginOptions
	devices map[string]*api.Device
	stopped time.Time // zero while the plugin is connected
	// endpoint is the file name of the plugin's socket. reported means that the plugin has sent its devices.
	endpoint string
	reported bool
}

// Grant is the allocation of devices of one resource to one container.
type Grant struct {
	IDs []string
	// Response is the plugin's response, which specifies how to give the container access to the
	// devices.
	Response *api.ContainerAllocateResponse
}

// New returns a Manager with the allocations of the checkpoint. It returns an error if the checkpoint exists
// but cannot be read from disk.
func New(cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg, resources: map[string]*registeredPlugin{}, superseded: map[string][]*registeredPlugin{}, grants: map[types.UID]map[string]map[string]*Grant{}, terminated: map[types.UID]bool{}}
	if err := m.load(); err != nil {
		return nil, err
	}
	return m, nil
}

// checkpoint returns the path of the file that contains the allocations and known devices across restarts of the
// kubelet.
func (m *Manager) checkpoint() string {
	return filepath.Join(m.cfg.Dir, "kubelet_internal_checkpoint")
}

// NoCheckpoint reports whether there is no checkpoint file, because the machine was set up again. The
// extended resources in the status of an existing Node are then obsolete.
func (m *Manager) NoCheckpoint() bool {
	_, err := os.Stat(m.checkpoint())
	return errors.Is(err, os.ErrNotExist)
}

// Capacity returns the number of all devices and of healthy devices by resource, for the status of the Node.
// The number is zero for a resource whose plugin stopped more than pluginGracePeriod ago, or has not
// registered since the restart, because the Node's status must be reset explicitly.
func (m *Manager) Capacity() (all, healthy v1.ResourceList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all, healthy = v1.ResourceList{}, v1.ResourceList{}
	for name, p := range m.resources {
		n, well := int64(len(p.devices)), int64(0)
		if p.client == nil || !p.stopped.IsZero() && time.Since(p.stopped) > pluginGracePeriod {
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

// healthy reports whether at least one device of the plugin is healthy, so that its devices can be allocated at
// all.
func (p *registeredPlugin) healthy() bool {
	for _, d := range p.devices {
		if d.Health == api.Healthy {
			return true
		}
	}
	return false
}

// ids returns the IDs of the devices, or nil if g is nil.
func (g *Grant) ids() []string {
	if g == nil {
		return nil
	}
	return g.IDs
}

// Allocate allocates the devices that a container requests, preferably on the NUMA nodes. Devices of init
// containers that terminate are reused for later containers. The allocation is reverted unless Settle is called
// with ok. It returns an error if there are too few healthy devices or the plugin fails. It implements
// topology.Provider.
func (m *Manager) Allocate(ctx context.Context, pod *v1.Pod, c *v1.Container, nodes numa.Set) error {
	if !m.containerNeedsDevices(c) {
		return nil
	}
	m.allocating.Lock()
	defer m.allocating.Unlock()
	m.freeInactive(pod.UID)
	for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
		q := c.Resources.Limits[name]
		if n := int(q.Value()); n > 0 && m.isKnown(string(name)) && !providedByClaim(pod, c, name) {
			if err := m.allocate(ctx, pod, c.Name, string(name), n, nodes); err != nil {
				return err
			}
		}
	}
	return nil
}

// Settle keeps the devices allocated to a pod and writes the checkpoint if ok is true, and otherwise frees
// them, because the pod is rejected. It implements topology.Provider.
func (m *Manager) Settle(pod *v1.Pod, ok bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return topology.Settle(m.grants, pod.UID, ok, m.save)
}

// allocateMissing allocates the devices that an admitted pod lacks, because their plugin has registered only
// after the admission.
func (m *Manager) allocateMissing(ctx context.Context, pod *v1.Pod) error {
	for c := range topology.Containers(pod) {
		if err := m.Allocate(ctx, pod, c, 0); err != nil {
			return err
		}
	}
	return m.Settle(pod, true)
}

// providedByClaim reports whether the container gets the resource from a ResourceClaim that the scheduler
// created, and not from a device plugin.
func providedByClaim(pod *v1.Pod, c *v1.Container, name v1.ResourceName) bool {
	s := pod.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(r v1.ContainerExtendedResourceRequest) bool {
		return r.ContainerName == c.Name && r.ResourceName == string(name)
	})
}

// containerNeedsDevices reports whether the container has a limit of a device plugin resource.
func (m *Manager) containerNeedsDevices(c *v1.Container) bool {
	for name := range c.Resources.Limits {
		if m.isKnown(string(name)) {
			return true
		}
	}
	return false
}

// podNeedsDevices reports whether a container of the pod has a limit of a device plugin resource.
func (m *Manager) podNeedsDevices(pod *v1.Pod) bool {
	for c := range topology.Containers(pod) {
		if m.containerNeedsDevices(c) {
			return true
		}
	}
	return false
}

// isKnown reports whether a device plugin has registered the resource.
func (m *Manager) isKnown(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resources[name] != nil
}

// freeInactive frees the devices of pods that have terminated or do not exist any more, except those of the
// pod `but`.
func (m *Manager) freeInactive(but types.UID) {
	// Active is called without mu because it takes other locks.
	gone := topology.Inactive(m.cfg.Active, m.cfg.Known, but)
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.grants, func(uid types.UID, _ map[string]map[string]*Grant) bool { return gone(uid) })
	maps.DeleteFunc(m.terminated, func(uid types.UID, _ bool) bool { return m.grants[uid] == nil })
}

// free returns the healthy devices of a resource that are not allocated, sorted by ID. The caller must hold
// mu.
func (m *Manager) free(name string) []string {
	taken := map[string]bool{}
	for _, containers := range m.grants {
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

// reusable returns the devices of the pod's containers that terminate before other containers
// start, unless another container of the pod reuses them already. The caller must hold mu.
func (m *Manager) reusable(pod *v1.Pod, name string) []string {
	out := map[string]bool{}
	for c := range topology.Containers(pod) {
		if g := m.grants[pod.UID][c.Name][name]; g != nil {
			for _, id := range g.IDs {
				if out[id] = true; !topology.TerminatesBeforeNext(pod, c.Name) {
					delete(out, id)
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(out))
}

// allocate allocates n devices of a resource to one container, preferring devices on the NUMA nodes. It does
// nothing if the container already has devices of the resource. It returns an error if too few devices are
// healthy and free, or if the plugin fails. The caller must hold the lock allocating, so that no other
// allocation takes the same devices while the plugin is called.
func (m *Manager) allocate(ctx context.Context, pod *v1.Pod, container, name string, n int, nodes numa.Set) error {
	m.mu.Lock()
	if m.grants[pod.UID][container][name] != nil {
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
	// If there are more devices on the NUMA nodes than needed, the plugin chooses among them. If
	// there are fewer, all of them are used and the plugin chooses the rest.
	if options.GetGetPreferredAllocationAvailable() {
		switch {
		case need > 0 && need < near:
			ids = m.preferred(ctx, name, client, slices.Concat(must, free[:near]), must, n, ids)
		case need > near && need < len(free):
			ids = m.preferred(ctx, name, client, slices.Concat(must, free), slices.Concat(must, free[:near]), n, ids)
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
	if m.grants[pod.UID] == nil {
		m.grants[pod.UID] = map[string]map[string]*Grant{}
	}
	if m.grants[pod.UID][container] == nil {
		m.grants[pod.UID][container] = map[string]*Grant{}
	}
	m.grants[pod.UID][container][name] = &Grant{IDs: ids, Response: resp.ContainerResponses[0]}
	return nil
}

// preferred returns n devices of available: those in must, and then those that the device plugin prefers. If the
// plugin responds with fewer devices or with devices that are not available, devices of otherwise are used in their
// place. If the call fails, it returns otherwise.
func (m *Manager) preferred(ctx context.Context, name string, client api.DevicePluginClient, available, must []string, n int, otherwise []string) []string {
	resp, err := client.GetPreferredAllocation(ctx, &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: int32(n),
	}}})
	if err != nil || len(resp.ContainerResponses) != 1 {
		m.cfg.Log.Warn("getting preferred devices from device plugin failed; devices are allocated to the container without the preference of the plugin, no retry", "resource", name, "err", err)
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

// Grants returns the allocations of a container by resource, or nil if it has none and its pod needs none. It
// allocates devices that are missing because the plugin or the allocation was unknown at admission, and calls
// PreStartContainer of plugins that require it. An error means that the container cannot be created now. The
// result must not be modified.
func (m *Manager) Grants(ctx context.Context, pod *v1.Pod, c *v1.Container) (map[string]*Grant, error) {
	if !m.podNeedsDevices(pod) {
		m.mu.Lock()
		none := len(m.grants[pod.UID][c.Name]) == 0
		m.mu.Unlock()
		if none {
			return nil, nil
		}
	}
	for name, q := range c.Resources.Limits {
		m.mu.Lock()
		missing := m.resources[string(name)] != nil && q.Value() > 0 && !providedByClaim(pod, c, name) && m.grants[pod.UID][c.Name][string(name)] == nil
		m.mu.Unlock()
		if missing {
			// The plugin registered, or the checkpoint was lost, after the pod was admitted.
			if err := m.allocateMissing(ctx, pod); err != nil {
				return nil, err
			}
		}
	}
	m.mu.Lock()
	grants := maps.Clone(m.grants[pod.UID][c.Name])
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

// Health returns the health of the devices that are allocated to a container, by resource, or nil if it has
// none.
func (m *Manager) Health(pod types.UID, container string) []v1.ResourceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []v1.ResourceStatus
	grants := m.grants[pod][container]
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

// Devices returns the IDs of the devices that are allocated to a container, by resource.
func (m *Manager) Devices(pod types.UID, container string) map[string][]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string][]string{}
	for name, g := range m.grants[pod][container] {
		out[name] = slices.Clone(g.IDs)
	}
	return out
}

// All returns all healthy devices by resource. The devices must not be modified.
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

// holders returns the pods to which devices of a resource are allocated. The caller must hold mu.
func (m *Manager) holders(name string) []types.UID {
	var out []types.UID
	for uid, containers := range m.grants {
		for _, grants := range containers {
			if grants[name] != nil {
				out = append(out, uid)
				break
			}
		}
	}
	return out
}

// sameDevices reports whether a and b have the same devices with the same health and topology.
func sameDevices(a, b map[string]*api.Device) bool {
	return maps.EqualFunc(a, b, func(x, y *api.Device) bool { return proto.Equal(x, y) })
}
