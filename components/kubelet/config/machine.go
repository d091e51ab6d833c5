package config

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"hyperkube/components/kubelet/node/eviction"
	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/internal/host/cgroup"
)

// Capacity returns the node's capacity for the Node's status: the machine's resources, and the maximum number
// of pods.
func (c *Config) Capacity(m nodestatus.Machine) v1.ResourceList {
	most := c.Node.MaxPods
	if n := c.Node.PodsPerCore * m.CPUs; n > 0 {
		most = min(most, n)
	}
	return m.Capacity(most)
}

// requiredKernelFlags are the values of the sysctls that the setting protectKernelDefaults requires.
var requiredKernelFlags = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// CheckMachine returns an error if the machine does not meet the configured requirements for swap, cgroups
// and kernel flags. The kubelet then does not start.
func (c *Config) CheckMachine(m nodestatus.Machine) error {
	if c.Machine.FailSwapOn && m.SwapBytes > 0 {
		return errors.New("running with swap on is not supported, please disable swap or set --fail-swap-on flag to false")
	}
	if c.Machine.FailCgroupV1 {
		groups, err := cgroup.Open()
		if err != nil {
			return err
		}
		if !groups.Unified() {
			return errors.New("kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is in maintenance mode")
		}
	}
	if !c.Machine.ProtectKernel {
		return nil
	}
	var errs []error
	for name, want := range requiredKernelFlags {
		raw, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			errs = append(errs, fmt.Errorf("reading kernel flag: %w", err))
			continue
		}
		if have := strings.TrimSpace(string(raw)); have != want {
			errs = append(errs, fmt.Errorf("invalid kernel flag: %s, expected value: %s, actual value: %s", name, want, have))
		}
	}
	return errors.Join(errs...)
}

// PodsMemoryLimit returns the memory limit of all pods together, in bytes: the capacity without reserved
// resources. The eviction threshold is not subtracted, so that pods can be evicted before the limit is
// reached.
func (c *Config) PodsMemoryLimit(m nodestatus.Machine) int64 {
	q := nodestatus.Allocatable(c.Capacity(m), c.Reserved.All)[v1.ResourceMemory]
	return q.Value()
}

// Unallocatable returns the resources of the machine that pods cannot request: the reserved ones plus, for
// memory and local storage, the hard eviction thresholds of the node.
func (c *Config) Unallocatable(m nodestatus.Machine) v1.ResourceList {
	out := v1.ResourceList{}
	for name, q := range c.Reserved.All {
		out[name] = q.DeepCopy()
	}
	add := func(name v1.ResourceName, n int64) {
		q := out[name]
		q.Add(*resource.NewQuantity(n, resource.BinarySI))
		out[name] = q
	}
	for _, t := range c.Eviction.Thresholds() {
		switch {
		case t.Grace > 0:
		case t.Signal == eviction.MemoryAvailable:
			add(v1.ResourceMemory, t.Value.Of(m.MemoryBytes))
		case t.Signal == eviction.NodeFsAvailable:
			add(v1.ResourceEphemeralStorage, t.Value.Of(m.DiskBytes))
		}
	}
	return out
}
