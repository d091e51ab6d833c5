package resources

import (
	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/resources/dra"
	"hyperkube/components/kubelet/resources/memorymanager"
)

// Capacity returns the resources of device plugins for the status of the Node: all devices, and the healthy
// ones, which are allocatable.
func (m *Manager) Capacity() (all, healthy v1.ResourceList) { return m.devices.Capacity() }

// IsReinstalled reports whether there is no checkpoint of devices, so that the machine was set up again and
// the extended resources in the status of its Node are obsolete.
func (m *Manager) IsReinstalled() bool { return m.devices.NoCheckpoint() }

// StaticCPUs reports whether the CPU manager policy is static, so that containers may have exclusive CPUs.
func (m *Manager) StaticCPUs() bool { return m.cpus != nil }

// StaticMemory reports whether the memory manager policy is Static, so that containers may have allocated
// memory of NUMA nodes.
func (m *Manager) StaticMemory() bool { return m.memory != nil }

// HasExclusiveCPUs reports whether exclusive CPUs are allocated to a container.
func (m *Manager) HasExclusiveCPUs(pod types.UID, container string) bool {
	if m.cpus == nil {
		return false
	}
	_, exclusive := m.cpus.Get(pod, container)
	return exclusive
}

// ExclusiveCPUs returns the IDs of the exclusive CPUs of a container, or nil if it has none.
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

// AllocatableCPUs returns the IDs of the CPUs that can be allocated exclusively, or nil without the static
// policy.
func (m *Manager) AllocatableCPUs() []int64 {
	if m.cpus == nil {
		return nil
	}
	return numbers(m.cpus.Allocatable())
}

// CPUUsage returns the number of shared and of exclusively allocated CPUs, and the latter by NUMA node, for
// metrics. All are zero without the static policy.
func (m *Manager) CPUUsage() (shared, exclusive int, byNode map[int]int) {
	if m.cpus == nil {
		return 0, 0, nil
	}
	return m.cpus.Usage()
}

// AllocatableMemory returns the memory and huge pages that can be allocated, by NUMA nodes, or nil without
// the Static policy.
func (m *Manager) AllocatableMemory() []memorymanager.Block {
	if m.memory == nil {
		return nil
	}
	return m.memory.Allocatable()
}

// MemoryBlocks returns the memory and huge pages that are allocated to a container, or nil without the Static
// policy.
func (m *Manager) MemoryBlocks(pod types.UID, container string) []memorymanager.Block {
	if m.memory == nil {
		return nil
	}
	return m.memory.Blocks(pod, container)
}

// Devices returns the IDs of the devices of device plugins that are allocated to a container, by resource.
func (m *Manager) Devices(pod types.UID, container string) map[string][]string {
	return m.devices.Devices(pod, container)
}

// AllDevices returns all healthy devices of device plugins, by resource.
func (m *Manager) AllDevices() map[string][]*pluginapi.Device { return m.devices.All() }

// ClaimUses returns the devices of ResourceClaims that a container uses, by claim.
func (m *Manager) ClaimUses(pod *v1.Pod, c *v1.Container) []dra.Use { return m.claims.Uses(pod, c) }

// ClaimsInUse returns the number of ResourceClaims in use by driver. The key "<any>" has the total number.
func (m *Manager) ClaimsInUse() map[string]int { return m.claims.InUse() }

// numbers returns the IDs of the CPUs in a set, in ascending order.
func numbers(set cpuset.CPUSet) []int64 {
	var out []int64
	for _, id := range set.List() {
		out = append(out, int64(id))
	}
	return out
}
