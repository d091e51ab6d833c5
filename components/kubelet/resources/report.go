package resources

import (
	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/resources/dra"
	"hyperkube/components/kubelet/resources/memorymanager"
)

// Capacity returns the resources of device plugins: all devices, and the healthy, allocatable ones.
func (m *Manager) Capacity() (all, healthy v1.ResourceList) { return m.devices.Capacity() }

// IsReinstalled reports whether there was no checkpoint of devices, so that the machine was set up again.
func (m *Manager) IsReinstalled() bool { return m.devices.NoCheckpoint() }

// StaticCPUs reports whether containers may have exclusive CPUs.
func (m *Manager) StaticCPUs() bool { return m.cpus != nil }

// StaticMemory reports whether containers may have allocated memory of NUMA nodes.
func (m *Manager) StaticMemory() bool { return m.memory != nil }

// HasExclusiveCPUs reports whether a container has exclusive CPUs.
func (m *Manager) HasExclusiveCPUs(pod types.UID, container string) bool {
	if m.cpus == nil {
		return false
	}
	_, exclusive := m.cpus.Get(pod, container)
	return exclusive
}

// ExclusiveCPUs returns the IDs of a container's exclusive CPUs, or nil.
func (m *Manager) ExclusiveCPUs(pod types.UID, container string) []int64 {
	if m.cpus == nil {
		return nil
	}
	set, exclusive := m.cpus.Get(pod, container)
	if !exclusive {
		return nil
	}
	return numbers(set)
}

// AllocatableCPUs returns the IDs of the CPUs that can be allocated, or nil without the static policy.
func (m *Manager) AllocatableCPUs() []int64 {
	if m.cpus == nil {
		return nil
	}
	return numbers(m.cpus.Allocatable())
}

// CPUUsage returns the number of shared and of exclusively allocated CPUs, and the latter by NUMA node.
func (m *Manager) CPUUsage() (shared, exclusive int, byNode map[int]int) {
	if m.cpus == nil {
		return 0, 0, nil
	}
	return m.cpus.Usage()
}

// AllocatableMemory returns the memory that can be allocated, or nil without the Static policy.
func (m *Manager) AllocatableMemory() []memorymanager.Block {
	if m.memory == nil {
		return nil
	}
	return m.memory.Allocatable()
}

// MemoryBlocks returns the memory that is allocated to a container, or nil without the Static policy.
func (m *Manager) MemoryBlocks(pod types.UID, container string) []memorymanager.Block {
	if m.memory == nil {
		return nil
	}
	return m.memory.Blocks(pod, container)
}

// Devices returns the IDs of a container's devices by resource.
func (m *Manager) Devices(pod types.UID, container string) map[string][]string {
	return m.devices.Devices(pod, container)
}

// AllDevices returns all devices by resource.
func (m *Manager) AllDevices() map[string][]*pluginapi.Device { return m.devices.All() }

// ClaimUses returns the devices of claims that a container uses.
func (m *Manager) ClaimUses(pod *v1.Pod, c *v1.Container) []dra.Use { return m.claims.Uses(pod, c) }

// ClaimsInUse returns the number of prepared claims by driver.
func (m *Manager) ClaimsInUse() map[string]int { return m.claims.InUse() }

func numbers(set cpuset.CPUSet) []int64 {
	var out []int64
	for _, id := range set.List() {
		out = append(out, int64(id))
	}
	return out
}
