// Package podresources serves the PodResources API, by which agents of the node list the devices, CPUs and
// memory that containers use.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#monitoring-device-plugin-resources
package podresources

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	podresourcesalpha "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"hyperkube/components/kubelet/grpcsocket"
	"hyperkube/components/kubelet/resources/dra"
	"hyperkube/components/kubelet/resources/memorymanager"
	"hyperkube/internal/pod/podutil"
)

// Pods lists the pods of the node whose resources the PodResources API shows.
type Pods interface {
	// Active returns the pods that have not terminated.
	Active() []*v1.Pod
}

// Resources has the allocations of containers. resources.Manager implements it.
type Resources interface {
	Devices(pod types.UID, container string) map[string][]string
	AllDevices() map[string][]*pluginapi.Device
	ClaimUses(pod *v1.Pod, c *v1.Container) []dra.Use
	ExclusiveCPUs(pod types.UID, container string) []int64
	AllocatableCPUs() []int64
	MemoryBlocks(pod types.UID, container string) []memorymanager.Block
	AllocatableMemory() []memorymanager.Block
}

// Server serves the PodResources API on a socket of the node.
type Server struct {
	// Root is the kubelet's root directory, below which the socket is.
	Root      string
	Pods      Pods
	Resources Resources
	// Count counts requests by method and API version.
	Count func(method, version string, err error)
}

// Run serves the API until ctx is done. It returns an error if the socket cannot be opened.
func (s *Server) Run(ctx context.Context) error {
	g := grpc.NewServer(grpcsocket.RateLimited(s.Count)...)
	podresourcesapi.RegisterPodResourcesListerServer(g, &lister{Server: s})
	podresourcesalpha.RegisterPodResourcesListerServer(g, &alphaLister{Server: s})
	return grpcsocket.Serve(ctx, filepath.Join(s.Root, "pod-resources", "kubelet.sock"), "PodResources API clients", g)
}

// alphaLister serves the version v1alpha1 of the API, which has only devices.
type alphaLister struct {
	podresourcesalpha.UnimplementedPodResourcesListerServer
	*Server
}

// List returns the devices of the app containers of all pods that have not terminated. It implements
// podresourcesalpha.PodResourcesListerServer.
func (l *alphaLister) List(context.Context, *podresourcesalpha.ListPodResourcesRequest) (*podresourcesalpha.ListPodResourcesResponse, error) {
	out := &podresourcesalpha.ListPodResourcesResponse{}
	for _, pod := range l.Pods.Active() {
		one := &podresourcesalpha.PodResources{Name: pod.Name, Namespace: pod.Namespace}
		for i := range pod.Spec.Containers {
			c := &podresourcesalpha.ContainerResources{Name: pod.Spec.Containers[i].Name}
			given := l.Resources.Devices(pod.UID, c.Name)
			for _, name := range slices.Sorted(maps.Keys(given)) {
				for _, id := range given[name] {
					c.Devices = append(c.Devices, &podresourcesalpha.ContainerDevices{ResourceName: name, DeviceIds: []string{id}})
				}
			}
			one.Containers = append(one.Containers, c)
		}
		out.PodResources = append(out.PodResources, one)
	}
	return out, nil
}

// lister serves the version v1 of the API.
type lister struct {
	podresourcesapi.UnimplementedPodResourcesListerServer
	*Server
}

// List returns the resources of all pods that have not terminated. It implements
// podresourcesapi.PodResourcesListerServer.
func (l *lister) List(context.Context, *podresourcesapi.ListPodResourcesRequest) (*podresourcesapi.ListPodResourcesResponse, error) {
	out := &podresourcesapi.ListPodResourcesResponse{}
	for _, pod := range l.Pods.Active() {
		out.PodResources = append(out.PodResources, l.of(pod))
	}
	return out, nil
}

// Get returns the resources of one pod that has not terminated, or an error if there is none of that name. It
// implements podresourcesapi.PodResourcesListerServer.
func (l *lister) Get(_ context.Context, r *podresourcesapi.GetPodResourcesRequest) (*podresourcesapi.GetPodResourcesResponse, error) {
	for _, pod := range l.Pods.Active() {
		if pod.Name == r.PodName && pod.Namespace == r.PodNamespace {
			return &podresourcesapi.GetPodResourcesResponse{PodResources: l.of(pod)}, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", r.PodName, r.PodNamespace)
}

// GetAllocatableResources returns the devices, CPUs and memory that can be allocated on the node. It
// implements podresourcesapi.PodResourcesListerServer.
func (l *lister) GetAllocatableResources(context.Context, *podresourcesapi.AllocatableResourcesRequest) (*podresourcesapi.AllocatableResourcesResponse, error) {
	out := &podresourcesapi.AllocatableResourcesResponse{}
	out.CpuIds = l.Resources.AllocatableCPUs()
	out.Memory = memoryBlocks(l.Resources.AllocatableMemory())
	all := l.Resources.AllDevices()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, d := range all[name] {
			out.Devices = append(out.Devices, containerDevices(name, d.ID, d)...)
		}
	}
	return out, nil
}

// of returns the resources that are allocated to the sidecars and app containers of a pod.
func (l *lister) of(pod *v1.Pod) *podresourcesapi.PodResources {
	out := &podresourcesapi.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	all := l.Resources.AllDevices()
	add := func(c *v1.Container) {
		r := &podresourcesapi.ContainerResources{Name: c.Name, CpuIds: l.Resources.ExclusiveCPUs(pod.UID, c.Name)}
		r.Memory = memoryBlocks(l.Resources.MemoryBlocks(pod.UID, c.Name))
		given := l.Resources.Devices(pod.UID, c.Name)
		for _, name := range slices.Sorted(maps.Keys(given)) {
			for _, id := range given[name] {
				i := slices.IndexFunc(all[name], func(d *pluginapi.Device) bool { return d.ID == id })
				var d *pluginapi.Device
				if i >= 0 {
					d = all[name][i]
				}
				r.Devices = append(r.Devices, containerDevices(name, id, d)...)
			}
		}
		for _, u := range l.Resources.ClaimUses(pod, c) {
			d := &podresourcesapi.DynamicResource{ClaimNamespace: u.Namespace, ClaimName: u.Name}
			for _, have := range u.Devices {
				one := &podresourcesapi.ClaimResource{DriverName: have.Driver, PoolName: have.Pool, DeviceName: have.Name}
				if have.ShareID != "" {
					one.ShareId = &have.ShareID
				}
				for _, name := range have.CDI {
					one.CdiDevices = append(one.CdiDevices, &podresourcesapi.CDIDevice{Name: name})
				}
				d.ClaimResources = append(d.ClaimResources, one)
			}
			r.DynamicResources = append(r.DynamicResources, d)
		}
		out.Containers = append(out.Containers, r)
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podutil.Sidecar(c) {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

// memoryBlocks converts memory blocks to the API type.
func memoryBlocks(list []memorymanager.Block) []*podresourcesapi.ContainerMemory {
	var out []*podresourcesapi.ContainerMemory
	for _, b := range list {
		m := &podresourcesapi.ContainerMemory{MemoryType: string(b.Type), Size: uint64(b.Size), Topology: &podresourcesapi.TopologyInfo{}}
		for _, id := range b.Nodes {
			m.Topology.Nodes = append(m.Topology.Nodes, &podresourcesapi.NUMANode{ID: int64(id)})
		}
		out = append(out, m)
	}
	return out
}

// containerDevices converts the device id of a resource to the API type, with one element for each of its
// NUMA nodes. d is the device, or nil if its plugin does not report it any more.
func containerDevices(resource, id string, d *pluginapi.Device) []*podresourcesapi.ContainerDevices {
	if d.GetTopology() == nil {
		return []*podresourcesapi.ContainerDevices{{ResourceName: resource, DeviceIds: []string{id}}}
	}
	var out []*podresourcesapi.ContainerDevices
	for _, n := range d.Topology.Nodes {
		out = append(out, &podresourcesapi.ContainerDevices{
			ResourceName: resource, DeviceIds: []string{id}, Topology: &podresourcesapi.TopologyInfo{Nodes: []*podresourcesapi.NUMANode{{ID: n.ID}}},
		})
	}
	return out
}
