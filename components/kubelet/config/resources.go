package config

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"hyperkube/internal/base/featuregates"
)

// Resources configures the managers of CPUs and memory, and the topology manager that aligns them with
// devices.
type Resources struct {
	CPUs     CPUs
	Memory   Memory
	Topology Topology
}

// CPUs configures the CPU manager.
type CPUs struct {
	// Static allocates exclusive CPUs to containers of Guaranteed pods that request whole CPUs.
	// Whole, Strict, ByCache and Spread are the policy options full-pcpus-only,
	// strict-cpu-reservation, prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa.
	Static, Whole, Strict, ByCache, Spread bool
	// Reserved are CPUs that are never allocated exclusively. The default number is that of the
	// reserved CPU resource.
	Reserved cpuset.CPUSet
}

// Memory configures the memory manager.
type Memory struct {
	// Static allocates containers of Guaranteed pods memory on as few NUMA nodes as possible.
	Static bool
	// Reserved are the bytes of memory and huge pages that are reserved on each NUMA node. Their
	// sum must equal Reserved.All plus the hard eviction threshold.
	Reserved map[int]map[v1.ResourceName]int64
}

// Topology configures the topology manager. The values are those of KubeletConfiguration.
type Topology struct {
	Policy, Scope string
	Options       map[string]string
}

// applyCPUs sets the policy of the CPU manager, its options and the reserved CPUs in c to the values of the
// configuration file f. It must be called after applyReserved, because reserved CPUs override the reserved CPU
// resource.
func (c *Config) applyCPUs(f *kubeletv1beta1.KubeletConfiguration) error {
	switch f.CPUManagerPolicy {
	case "":
	case "none":
		c.Resources.CPUs.Static = false
	case "static":
		c.Resources.CPUs.Static = true
	default:
		return fmt.Errorf("cpuManagerPolicy %q: want none or static", f.CPUManagerPolicy)
	}
	for name, value := range f.CPUManagerPolicyOptions {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("cpuManagerPolicyOptions %s: %w", name, err)
		}
		switch name {
		case "full-pcpus-only":
			c.Resources.CPUs.Whole = on
		case "strict-cpu-reservation":
			c.Resources.CPUs.Strict = on
		case "prefer-align-cpus-by-uncorecache":
			c.Resources.CPUs.ByCache = on
		case "distribute-cpus-across-numa":
			if !featuregates.Set(f.FeatureGates).Enabled(GateCPUBeta, true) {
				return fmt.Errorf("CPU Manager Policy Beta-level Options not enabled, but option %q provided", name)
			}
			c.Resources.CPUs.Spread = on
		default:
			return fmt.Errorf("cpuManagerPolicyOptions: %q is not supported", name)
		}
		if on && !c.Resources.CPUs.Static {
			return fmt.Errorf("cpuManagerPolicyOptions: %s requires the static policy", name)
		}
	}
	if c.Resources.CPUs.Spread && c.Resources.CPUs.ByCache {
		return errors.New("cpuManagerPolicyOptions: prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa are mutually exclusive")
	}
	if f.ReservedSystemCPUs == "" {
		return nil
	}
	set, err := cpuset.Parse(f.ReservedSystemCPUs)
	if err != nil {
		return fmt.Errorf("reservedSystemCPUs: %w", err)
	}
	if c.Reserved.All == nil {
		c.Reserved.All = v1.ResourceList{}
	}
	// reservedSystemCPUs overrides the CPU of systemReserved and kubeReserved.
	c.Resources.CPUs.Reserved, c.Reserved.All[v1.ResourceCPU] = set, *resource.NewQuantity(int64(set.Size()), resource.DecimalSI)
	return nil
}

// applyMemory sets the policies of the memory manager and the topology manager in c to the values of the
// configuration file f. Fields that f does not set remain. It returns an error for an unknown memory manager
// policy and for invalid reserved memory.
func (c *Config) applyMemory(f *kubeletv1beta1.KubeletConfiguration) error {
	switch f.MemoryManagerPolicy {
	case "":
	case kubeletv1beta1.NoneMemoryManagerPolicy:
		c.Resources.Memory.Static = false
	case kubeletv1beta1.StaticMemoryManagerPolicy:
		c.Resources.Memory.Static = true
	default:
		return fmt.Errorf("memoryManagerPolicy %q: want None or Static", f.MemoryManagerPolicy)
	}
	if len(f.ReservedMemory) > 0 {
		c.Resources.Memory.Reserved = map[int]map[v1.ResourceName]int64{}
	}
	for _, r := range f.ReservedMemory {
		if len(r.Limits) == 0 {
			return fmt.Errorf("reservedMemory: NUMA node %d has no limits", r.NumaNode)
		}
		if r.NumaNode < 0 {
			return fmt.Errorf("reservedMemory: NUMA node %d must not be negative", r.NumaNode)
		}
		id := int(r.NumaNode)
		if c.Resources.Memory.Reserved[id] == nil {
			c.Resources.Memory.Reserved[id] = map[v1.ResourceName]int64{}
		}
		for name, q := range r.Limits {
			_, twice := c.Resources.Memory.Reserved[id][name]
			switch {
			case name != v1.ResourceMemory && !strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix):
				return fmt.Errorf("reservedMemory: the limit type %q for NUMA node %d is not allowed, only memory and hugepages-<size> are", name, id)
			case q.Sign() <= 0:
				return fmt.Errorf("reservedMemory: %s of NUMA node %d must be positive", name, id)
			case twice:
				return fmt.Errorf("reservedMemory: %s of NUMA node %d is specified twice", name, id)
			}
			c.Resources.Memory.Reserved[id][name] = q.Value()
		}
	}
	if f.TopologyManagerPolicy != "" {
		c.Resources.Topology.Policy = f.TopologyManagerPolicy
	}
	if f.TopologyManagerScope != "" {
		c.Resources.Topology.Scope = f.TopologyManagerScope
	}
	if f.TopologyManagerPolicyOptions != nil {
		c.Resources.Topology.Options = maps.Clone(f.TopologyManagerPolicyOptions)
	}
	return nil
}
