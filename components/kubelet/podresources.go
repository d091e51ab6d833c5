package kubelet

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	podresourcesalpha "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"hyperkube/components/kubelet/grpcsocket"
	"hyperkube/components/kubelet/resources/memorymanager"
	"hyperkube/internal/pod/podutil"
)

// deviceCapacity returns the resources of device plugins.
func (k *Kubelet) deviceCapacity() (all, healthy v1.ResourceList) { return k.devices.Capacity() }

// devicesChanged triggers an update of the Node and of the pods that use the devices.
func (k *Kubelet) devicesChanged(list []types.UID) {
	k.nodeStatus.Changed()
	for _, uid := range list {
		k.pods.Changed(uid)
	}
}

// extend adds allocated devices, CPUs and NUMA nodes to a container's configuration.
func (k *Kubelet) extend(ctx context.Context, pod *v1.Pod, c *v1.Container, cfg *runtimeapi.ContainerConfig) error {
	grants, err := k.devices.Grants(ctx, pod, c)
	if err != nil {
		return err
	}
	var vars []*runtimeapi.KeyValue
	for _, name := range slices.Sorted(maps.Keys(grants)) {
		r := grants[name].Response
		for _, key := range slices.Sorted(maps.Keys(r.Envs)) {
			vars = append(vars, &runtimeapi.KeyValue{Key: key, Value: []byte(r.Envs[key])})
		}
		for _, m := range r.Mounts {
			cfg.Mounts = append(cfg.Mounts, &runtimeapi.Mount{ContainerPath: m.ContainerPath, HostPath: m.HostPath, Readonly: m.ReadOnly})
		}
		for _, d := range r.Devices {
			cfg.Devices = append(cfg.Devices, &runtimeapi.Device{ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: d.Permissions})
		}
		maps.Copy(cfg.Annotations, r.Annotations)
		for _, d := range r.CdiDevices {
			cfg.CDIDevices = append(cfg.CDIDevices, &runtimeapi.CDIDevice{Name: d.Name})
		}
	}
	for _, name := range k.claims.CDI(pod, c) {
		cfg.CDIDevices = append(cfg.CDIDevices, &runtimeapi.CDIDevice{Name: name})
	}
	if k.cpus != nil {
		set, _ := k.cpus.Get(pod.UID, c.Name)
		cfg.Linux.Resources.CpusetCpus = set.String()
	}
	if k.memory != nil {
		if nodes := k.memory.Nodes(pod.UID, c.Name); nodes != 0 {
			cfg.Linux.Resources.CpusetMems = nodes.String()
		}
	}
	// Variables of the pod come last and take precedence.
	cfg.Envs = append(vars, cfg.Envs...)
	return nil
}

// podResources serves the PodResources API until ctx is done.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#monitoring-device-plugin-resources
func (k *Kubelet) podResources(ctx context.Context) error {
	s := grpc.NewServer(grpcsocket.RateLimited(k.metrics.PodResourcesRequest)...)
	podresourcesapi.RegisterPodResourcesListerServer(s, &lister{k: k})
	podresourcesalpha.RegisterPodResourcesListerServer(s, &alphaLister{k: k})
	return grpcsocket.Serve(ctx, filepath.Join(k.cfg.Layout.Kubelet, "pod-resources", "kubelet.sock"), "PodResources API clients", s)
}

// alphaLister is the v1alpha1 version of the API, which has only devices.
type alphaLister struct {
	podresourcesalpha.UnimplementedPodResourcesListerServer
	k *Kubelet
}

// List implements podresourcesalpha.PodResourcesListerServer.
func (l *alphaLister) List(context.Context, *podresourcesalpha.ListPodResourcesRequest) (*podresourcesalpha.ListPodResourcesResponse, error) {
	out := &podresourcesalpha.ListPodResourcesResponse{}
	for _, pod := range l.k.pods.Active() {
		one := &podresourcesalpha.PodResources{Name: pod.Name, Namespace: pod.Namespace}
		for i := range pod.Spec.Containers {
			c := &podresourcesalpha.ContainerResources{Name: pod.Spec.Containers[i].Name}
			given := l.k.devices.Devices(pod.UID, c.Name)
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

// lister is the v1 version of the API.
type lister struct {
	podresourcesapi.UnimplementedPodResourcesListerServer
	k *Kubelet
}

// List implements podresourcesapi.PodResourcesListerServer.
func (l *lister) List(context.Context, *podresourcesapi.ListPodResourcesRequest) (*podresourcesapi.ListPodResourcesResponse, error) {
	out := &podresourcesapi.ListPodResourcesResponse{}
	for _, pod := range l.k.pods.Active() {
		out.PodResources = append(out.PodResources, l.of(pod))
	}
	return out, nil
}

// Get implements podresourcesapi.PodResourcesListerServer.
func (l *lister) Get(_ context.Context, r *podresourcesapi.GetPodResourcesRequest) (*podresourcesapi.GetPodResourcesResponse, error) {
	for _, pod := range l.k.pods.Active() {
		if pod.Name == r.PodName && pod.Namespace == r.PodNamespace {
			return &podresourcesapi.GetPodResourcesResponse{PodResources: l.of(pod)}, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", r.PodName, r.PodNamespace)
}

// GetAllocatableResources implements podresourcesapi.PodResourcesListerServer.
func (l *lister) GetAllocatableResources(context.Context, *podresourcesapi.AllocatableResourcesRequest) (*podresourcesapi.AllocatableResourcesResponse, error) {
	out := &podresourcesapi.AllocatableResourcesResponse{}
	if l.k.cpus != nil {
		out.CpuIds = numbers(l.k.cpus.Allocatable())
	}
	if l.k.memory != nil {
		out.Memory = memoryBlocks(l.k.memory.Allocatable())
	}
	all := l.k.devices.All()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, d := range all[name] {
			out.Devices = append(out.Devices, containerDevices(name, d.ID, d)...)
		}
	}
	return out, nil
}

func (l *lister) of(pod *v1.Pod) *podresourcesapi.PodResources {
	out := &podresourcesapi.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	all := l.k.devices.All()
	add := func(c *v1.Container) {
		r := &podresourcesapi.ContainerResources{Name: c.Name, CpuIds: l.k.exclusiveCPUs(pod.UID, c.Name)}
		if l.k.memory != nil {
			r.Memory = memoryBlocks(l.k.memory.Blocks(pod.UID, c.Name))
		}
		given := l.k.devices.Devices(pod.UID, c.Name)
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
		for _, u := range l.k.claims.Uses(pod, c) {
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

// containerDevices converts a device to the API type, with one element for each of its NUMA nodes. d may
// be nil.
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
