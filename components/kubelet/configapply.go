package kubelet

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/components/kubelet/node/shutdown"
	"hyperkube/internal/base/featuregates"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/process"
)

// reservable are the resources that can be reserved.
var reservable = []string{"cpu", "memory", "ephemeral-storage", "pid"}

// applyReserved applies the reserved resources and the limits to enforce.
func (c *Config) applyReserved(f *kubeletv1beta1.KubeletConfiguration) error {
	var errs []error
	read := func(what string, list map[string]string) v1.ResourceList {
		out := v1.ResourceList{}
		for name, value := range list {
			q, err := resource.ParseQuantity(value)
			switch {
			case err != nil:
			case !slices.Contains(reservable, name):
				err = errors.New("reservation is not supported")
			case q.Sign() < 0:
				err = errors.New("must not be negative")
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", what, name, err))
				continue
			}
			out[v1.ResourceName(name)] = q
		}
		return out
	}
	kube, system := read("kubeReserved", f.KubeReserved), read("systemReserved", f.SystemReserved)
	if len(kube) > 0 || len(system) > 0 {
		c.Reserved.Kube, c.Reserved.System, c.Reserved.All = kube, system, v1.ResourceList{}
		for _, list := range []v1.ResourceList{kube, system} {
			for name, q := range list {
				sum := c.Reserved.All[name]
				sum.Add(q)
				c.Reserved.All[name] = sum
			}
		}
	}
	if f.EnforceNodeAllocatable != nil {
		c.Reserved.Enforce = slices.Clone(f.EnforceNodeAllocatable)
		if len(c.Reserved.Enforce) == 0 {
			c.Reserved.Enforce = []string{"none"}
		}
	}
	if f.KubeReservedCgroup != "" {
		c.Reserved.KubeCgroup = f.KubeReservedCgroup
	}
	if f.SystemReservedCgroup != "" {
		c.Reserved.SystemCgroup = f.SystemReservedCgroup
	}
	return errors.Join(errs...)
}

// applyNode applies the settings of the node and its pods as a whole.
func (c *Config) applyNode(f *kubeletv1beta1.KubeletConfiguration) error {
	if f.PodsPerCore != 0 {
		c.Node.PodsPerCore = int64(f.PodsPerCore)
	}
	if d := f.NodeStatusUpdateFrequency.Duration; d != 0 {
		c.Node.Update = d
		// A configured update frequency is also the default report frequency.
		if f.NodeStatusReportFrequency.Duration == 0 {
			c.Node.Report = d
		}
	}
	if n := f.NodeStatusMaxImages; n != nil {
		c.Node.MaxImages = new(*n)
	}
	switch serial := f.SerializeImagePulls; {
	case serial != nil && *serial:
		if n := f.MaxParallelImagePulls; n != nil && *n > 1 {
			return errors.New("maxParallelImagePulls cannot be larger than 1 unless serializeImagePulls is false")
		}
		c.Images.ParallelPulls = 1
	case f.MaxParallelImagePulls != nil:
		if c.Images.ParallelPulls = int(*f.MaxParallelImagePulls); c.Images.ParallelPulls < 1 {
			return errors.New("maxParallelImagePulls must be a positive number")
		}
	}
	switch f.MemorySwap.SwapBehavior {
	case "", "NoSwap":
	case "LimitedSwap":
		c.Containers.LimitedSwap = true
	default:
		return fmt.Errorf("memorySwap.swapBehavior %q: want NoSwap or LimitedSwap", f.MemorySwap.SwapBehavior)
	}
	for to, from := range map[*bool]*bool{&c.Machine.FailSwapOn: f.FailSwapOn, &c.Machine.FailCgroupV1: f.FailCgroupV1} {
		if from != nil {
			*to = *from
		}
	}
	if f.CgroupDriver != "" {
		c.Cgroups.Systemd = f.CgroupDriver == "systemd"
	}
	if f.KubeletCgroups != "" {
		c.Cgroups.Kubelet = f.KubeletCgroups
	}
	if f.SystemCgroups != "" {
		c.Cgroups.System = f.SystemCgroups
	}
	c.Machine.ProtectKernel = c.Machine.ProtectKernel || f.ProtectKernelDefaults
	if n := f.OOMScoreAdj; n != nil {
		score := int(*n)
		if score < -1000 || score > 1000 {
			return fmt.Errorf("oomScoreAdj (--oom-score-adj) %d must be between -1000 and 1000, inclusive", score)
		}
		c.Machine.OOMScore = &score
	}
	return nil
}

// applyCPUs applies the CPU manager policy.
func (c *Config) applyCPUs(f *kubeletv1beta1.KubeletConfiguration) error {
	switch f.CPUManagerPolicy {
	case "":
	case "none":
		c.CPUs.Static = false
	case "static":
		c.CPUs.Static = true
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
			c.CPUs.Whole = on
		case "strict-cpu-reservation":
			c.CPUs.Strict = on
		case "prefer-align-cpus-by-uncorecache":
			c.CPUs.ByCache = on
		case "distribute-cpus-across-numa":
			if !featuregates.Set(f.FeatureGates).Enabled(gateCPUBeta, true) {
				return fmt.Errorf("CPU Manager Policy Beta-level Options not enabled, but option %q provided", name)
			}
			c.CPUs.Spread = on
		default:
			return fmt.Errorf("cpuManagerPolicyOptions: %q is not supported", name)
		}
		if on && !c.CPUs.Static {
			return fmt.Errorf("cpuManagerPolicyOptions: %s requires the static policy", name)
		}
	}
	if c.CPUs.Spread && c.CPUs.ByCache {
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
	c.CPUs.Reserved, c.Reserved.All[v1.ResourceCPU] = set, *resource.NewQuantity(int64(set.Size()), resource.DecimalSI)
	return nil
}

// applyMemory applies the memory manager and topology manager policies.
func (c *Config) applyMemory(f *kubeletv1beta1.KubeletConfiguration) error {
	switch f.MemoryManagerPolicy {
	case "":
	case kubeletv1beta1.NoneMemoryManagerPolicy:
		c.Memory.Static = false
	case kubeletv1beta1.StaticMemoryManagerPolicy:
		c.Memory.Static = true
	default:
		return fmt.Errorf("memoryManagerPolicy %q: want None or Static", f.MemoryManagerPolicy)
	}
	if len(f.ReservedMemory) > 0 {
		c.Memory.Reserved = map[int]map[v1.ResourceName]int64{}
	}
	for _, r := range f.ReservedMemory {
		if len(r.Limits) == 0 {
			return fmt.Errorf("reservedMemory: NUMA node %d has no limits", r.NumaNode)
		}
		if r.NumaNode < 0 {
			return fmt.Errorf("reservedMemory: NUMA node %d must not be negative", r.NumaNode)
		}
		id := int(r.NumaNode)
		if c.Memory.Reserved[id] == nil {
			c.Memory.Reserved[id] = map[v1.ResourceName]int64{}
		}
		for name, q := range r.Limits {
			_, twice := c.Memory.Reserved[id][name]
			switch {
			case name != v1.ResourceMemory && !strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix):
				return fmt.Errorf("reservedMemory: the limit type %q for NUMA node %d is not allowed, only memory and hugepages-<size> are", name, id)
			case q.Sign() <= 0:
				return fmt.Errorf("reservedMemory: %s of NUMA node %d must be positive", name, id)
			case twice:
				return fmt.Errorf("reservedMemory: %s of NUMA node %d is specified twice", name, id)
			}
			c.Memory.Reserved[id][name] = q.Value()
		}
	}
	if f.TopologyManagerPolicy != "" {
		c.Topology.Policy = f.TopologyManagerPolicy
	}
	if f.TopologyManagerScope != "" {
		c.Topology.Scope = f.TopologyManagerScope
	}
	if f.TopologyManagerPolicyOptions != nil {
		c.Topology.Options = maps.Clone(f.TopologyManagerPolicyOptions)
	}
	return nil
}

// applyShutdown applies the grace periods of a graceful node shutdown.
func (c *Config) applyShutdown(f *kubeletv1beta1.KubeletConfiguration) error {
	var by []shutdown.Period
	for _, p := range f.ShutdownGracePeriodByPodPriority {
		by = append(by, shutdown.Period{Priority: p.Priority, Grace: time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	if len(by) > 0 && f.FeatureGates != nil && !featuregates.Set(f.FeatureGates).Enabled(gateShutdownByPriority, true) {
		return errors.New("shutdownGracePeriodByPodPriority requires the feature gate GracefulNodeShutdownBasedOnPodPriority")
	}
	periods, err := shutdown.Periods(f.ShutdownGracePeriod.Duration, f.ShutdownGracePeriodCriticalPods.Duration, by)
	if err == nil && len(periods) > 0 {
		c.Machine.Shutdown = periods
	}
	return err
}

// applyServer applies the settings of the HTTPS server.
func (c *Config) applyServer(f *kubeletv1beta1.KubeletConfiguration) error {
	overrideInverted(&c.Server.NoDebug, f.EnableDebuggingHandlers)
	overrideInverted(&c.Server.NoProfiling, f.EnableProfilingHandler)
	overrideInverted(&c.Server.NoNodeLogs, f.EnableSystemLogHandler)
	c.Server.NodeLogQuery = ptr.Deref(f.EnableSystemLogQuery, false)
	c.Server.ContentionProfile = c.Server.ContentionProfile || f.EnableContentionProfiling
	override(&c.Server.HealthzAddress, f.HealthzBindAddress)
	override(&c.Server.StreamIdle, f.StreamingConnectionIdleTimeout.Duration)
	if len(f.TLSCurvePreferences) > 0 {
		c.Server.Curves = nil
	}
	for _, id := range f.TLSCurvePreferences {
		c.Server.Curves = append(c.Server.Curves, tls.CurveID(id))
	}
	switch f.TLSMinVersion {
	case "":
	case "VersionTLS12":
		c.Server.TLSMinVersion = tls.VersionTLS12
	case "VersionTLS13":
		c.Server.TLSMinVersion = tls.VersionTLS13
	default:
		return fmt.Errorf("tlsMinVersion %q: want VersionTLS12 or VersionTLS13", f.TLSMinVersion)
	}
	for _, name := range f.TLSCipherSuites {
		i := slices.IndexFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.Name == name })
		if i < 0 {
			return fmt.Errorf("tlsCipherSuites: %q is unknown or insecure", name)
		}
		c.Server.CipherSuites = append(c.Server.CipherSuites, tls.CipherSuites()[i].ID)
	}
	return nil
}

// capacity returns the machine's capacity for the Node's status.
func (k *Kubelet) capacity() v1.ResourceList {
	most := k.cfg.Node.MaxPods
	if n := k.cfg.Node.PodsPerCore * k.machine.CPUs; n > 0 {
		most = min(most, n)
	}
	return k.machine.Capacity(most)
}

// requiredKernelFlags are the kernel flags that protectKernelDefaults requires.
var requiredKernelFlags = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// validateMachine returns an error if the configuration does not allow the kubelet to run on this
// machine.
func (k *Kubelet) validateMachine() error {
	if k.cfg.Machine.FailSwapOn && k.machine.SwapBytes > 0 {
		return errors.New("running with swap on is not supported, please disable swap or set --fail-swap-on flag to false")
	}
	if k.cfg.Machine.FailCgroupV1 {
		groups, err := cgroup.Open()
		if err != nil {
			return err
		}
		if !groups.Unified() {
			return errors.New("kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is in maintenance mode")
		}
	}
	if !k.cfg.Machine.ProtectKernel {
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

// enforceReserved sets the cgroup limits of the reserved resources, and the OOM score adjustment of
// this process.
func (k *Kubelet) enforceReserved() error {
	for _, e := range []struct {
		name, cgroup string
		list         v1.ResourceList
	}{
		{enforceKube, k.cfg.Reserved.KubeCgroup, k.cfg.Reserved.Kube}, {enforceSystem, k.cfg.Reserved.SystemCgroup, k.cfg.Reserved.System},
		{enforceKubeCPU, k.cfg.Reserved.KubeCgroup, k.cfg.Reserved.Kube}, {enforceSystemCPU, k.cfg.Reserved.SystemCgroup, k.cfg.Reserved.System},
	} {
		if !k.cfg.Reserved.enforces(e.name) {
			continue
		}
		if !k.cgroups.Exists(e.cgroup) {
			return fmt.Errorf("failed to enforce %s cgroup limits on %q: cgroup does not exist", e.name, e.cgroup)
		}
		whole := e.name == enforceKube || e.name == enforceSystem
		r := cgroup.Resources{}
		if whole {
			r.MemoryLimit = e.list.Memory().Value()
			if k.host.Limits.MemoryQoS && r.MemoryLimit > 0 {
				r.Unified = map[string]string{"memory.min": strconv.FormatInt(r.MemoryLimit, 10)}
			}
		}
		if cpu := e.list.Cpu().MilliValue(); cpu > 0 {
			r.CPUShares = uint64(max(cpu*1024/1000, 2))
		}
		if pids, ok := e.list["pid"]; ok && whole {
			r.PidsLimit = pids.Value()
		}
		if err := k.cgroups.Set(e.cgroup, r); err != nil {
			return fmt.Errorf("enforcing reserved resources: %w", err)
		}
	}
	// If the kernel does not let the process lower the score, the nearest possible value is used.
	score := process.OOMScoreAdj(*k.cfg.Machine.OOMScore)
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(score)), 0); err != nil {
		k.log.Warn("setting the kubelet's OOM score adjustment failed", "err", err)
	}
	return nil
}

// podsMemoryLimit returns the memory limit of all pods together, in bytes.
func (k *Kubelet) podsMemoryLimit() int64 {
	q := nodestatus.Allocatable(k.capacity(), k.cfg.Reserved.All)[v1.ResourceMemory]
	return q.Value()
}
