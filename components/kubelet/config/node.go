package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"hyperkube/components/kubelet/node/eviction"
	"hyperkube/components/kubelet/node/shutdown"
	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/base/featuregates"
)

// Node configures the Node object, such as the labels with which it is registered, and how often the kubelet
// updates it.
type Node struct {
	// IPs are the node's addresses, the primary one first, at most one of each family. The default
	// is the address of the default route's interface.
	IPs []netip.Addr
	// Labels and Taints are set when the Node is registered.
	Labels map[string]string
	Taints []v1.Taint
	// NoRegister: the kubelet does not register the Node, and only updates it.
	NoRegister bool
	// Unschedulable registers the Node as unschedulable.
	Unschedulable bool
	// ProviderID is the ID of the node at the cloud provider. It may be empty.
	ProviderID string
	// CloudProvider is External if a cloud controller manager sets the addresses of the Node and removes the taint with
	// which the kubelet registers it.
	CloudProvider cloudprovider.Setting
	// PodCIDR is passed to the runtime until the Node has a pod CIDR.
	PodCIDR string
	// MaxPods is 110 by default. PodsPerCore limits the number of pods per CPU; 0 means no limit.
	MaxPods, PodsPerCore int64
	// Update is the period in which the Node's status is computed, 10 seconds by default. Report is
	// the period in which an unchanged status is sent, 5 minutes by default. Lease is the duration
	// of the lease, 40 seconds by default; it is renewed after a quarter of that.
	Update, Report, Lease time.Duration
	// MaxImages is the maximum number of images in the status. Nil means 50; a negative value means
	// no limit.
	MaxImages *int32
}

func (c *Node) complete() {
	c.MaxPods = cmp.Or(c.MaxPods, defaultMaxPods)
	c.Update = cmp.Or(c.Update, defaultUpdate)
	c.Report = cmp.Or(c.Report, defaultReport)
	c.Lease = cmp.Or(c.Lease, defaultLease)
	c.MaxImages = cmp.Or(c.MaxImages, new(int32(defaultMaxImages)))
}

// Machine configures the requirements for the machine, and the kubelet's process on it.
type Machine struct {
	// FailSwapOn, FailCgroupV1 and ProtectKernel make New fail on a machine with swap, with cgroup
	// v1, or with kernel flags other than those that the kubelet requires.
	FailSwapOn, FailCgroupV1, ProtectKernel bool
	// OOMScore is the oom_score_adj of this process, -999 by default.
	OOMScore *int
	// Shutdown are the grace periods of pods by priority when the machine shuts down. If it is
	// empty, the kubelet does not delay the shutdown.
	Shutdown []shutdown.Period
	// StopSocket is the socket on which the kubelet waits for the command to suspend all pods, because the machine shuts
	// down. Empty means none. It is not part of KubeletConfiguration.
	StopSocket string
}

func (c *Machine) complete() { c.OOMScore = cmp.Or(c.OOMScore, new(defaultOOMScore)) }

// Eviction configures node-pressure eviction: the thresholds, and how pods are evicted when one is met.
type Eviction struct {
	// Settings are the thresholds, as in {"memory.available": "100Mi"}. The default hard thresholds
	// are upstream's.
	Settings eviction.Settings
	// Transition is how long a pressure condition is kept after the pressure has ended, 5 minutes
	// by default. MaxGrace is the maximum termination grace period, in seconds, when a soft
	// threshold is met.
	Transition time.Duration
	MaxGrace   int64
	// NoStorageLimits disables the enforcement of local storage limits.
	NoStorageLimits bool

	thresholds []eviction.Threshold // parsed Settings; validate sets it
}

// Thresholds returns the thresholds that Settings configures. Complete must have succeeded.
func (c *Eviction) Thresholds() []eviction.Threshold { return c.thresholds }

func (c *Eviction) complete() {
	if c.Settings.Hard == nil {
		c.Settings.Hard = EvictionHard()
	}
	c.Transition = cmp.Or(c.Transition, defaultEvictionTransition)
}

// Reserved configures the resources of the node that pods cannot use, because they are reserved for the system and
// Kubernetes components, and which cgroups are limited accordingly.
type Reserved struct {
	// All is subtracted from the capacity to compute the allocatable resources.
	All v1.ResourceList
	// Enforce lists the limits to enforce: "pods" (all pods together are limited to the allocatable
	// resources; the default), "kube-reserved" and "system-reserved" (their cgroups are limited to the
	// reserved resources). "none" enforces no limits.
	Enforce []string
	// KubeCgroup and SystemCgroup are the cgroups of "kube-reserved" and "system-reserved". Kube
	// and System are their limits.
	KubeCgroup, SystemCgroup string
	Kube, System             v1.ResourceList
}

// EnforcePods and the other constants are the values of Reserved.Enforce: the cgroups whose limits the kubelet
// sets.
const (
	// EnforcePods limits all pods together to the allocatable resources.
	EnforcePods   = "pods"
	EnforceKube   = "kube-reserved"
	EnforceSystem = "system-reserved"
	// EnforceKubeCPU and EnforceSystemCPU limit the same cgroups as EnforceKube and EnforceSystem, but only their
	// CPU: CPU is compressible, so no process is killed at the limit.
	EnforceKubeCPU   = "kube-reserved-compressible"
	EnforceSystemCPU = "system-reserved-compressible"
)

// complete sets the default of Enforce. cgroups reports whether pods have cgroups; without them nothing can
// be enforced.
func (c *Reserved) complete(cgroups bool) {
	switch {
	case c.Enforce != nil:
	case cgroups:
		c.Enforce = []string{EnforcePods}
	default:
		c.Enforce = []string{"none"}
	}
}

// Enforces reports whether the limit of that name, such as EnforcePods, is enforced.
func (c *Reserved) Enforces(name string) bool { return slices.Contains(c.Enforce, name) }

// validate returns an error if Enforce has unknown or contradictory values, or the cgroup of a value is not
// set. cgroups reports whether pods have cgroups.
func (c *Reserved) validate(cgroups bool) error {
	for _, name := range c.Enforce {
		switch {
		case name == "none" && len(c.Enforce) > 1:
			return errors.New("enforceNodeAllocatable: none cannot be combined with other values")
		case name == "none", name == EnforcePods && cgroups:
		case name == EnforcePods:
			return errors.New("enforceNodeAllocatable: pods requires cgroupsPerQOS")
		case (name == EnforceKube || name == EnforceKubeCPU) && c.KubeCgroup == "":
			return fmt.Errorf("enforceNodeAllocatable: %s requires kubeReservedCgroup", name)
		case (name == EnforceSystem || name == EnforceSystemCPU) && c.SystemCgroup == "":
			return fmt.Errorf("enforceNodeAllocatable: %s requires systemReservedCgroup", name)
		case name == EnforceKubeCPU && c.Enforces(EnforceKube), name == EnforceSystemCPU && c.Enforces(EnforceSystem):
			return fmt.Errorf("enforceNodeAllocatable: %s cannot be combined with its value that is not compressible", name)
		case name != EnforceKube && name != EnforceSystem && name != EnforceKubeCPU && name != EnforceSystemCPU:
			return fmt.Errorf("enforceNodeAllocatable: unsupported %q: want none, pods, kube-reserved, system-reserved, kube-reserved-compressible or system-reserved-compressible", name)
		}
	}
	return nil
}

// Cgroups configures the cgroups of pods, of the kubelet and of system processes.
type Cgroups struct {
	// Off: pods get no cgroups, for machines where the kubelet may not create any.
	Off bool
	// Systemd names cgroups as systemd slices. It applies only if the runtime does not report its
	// cgroup driver.
	Systemd bool
	// Kubelet is the cgroup that the kubelet's process moves itself to. It is created if it does not
	// exist. If it is empty, the process stays in its cgroup.
	Kubelet string
	// System is the cgroup that processes of the root cgroup are moved to. It is created if it does
	// not exist. If it is empty, no process is moved.
	System string
}

// Events limits how many events are sent per second: QPS is 50 and Burst is 100 by default. 0
// QPS means no limit.
type Events struct {
	QPS   *int32
	Burst int
}

func (c *Events) complete() {
	c.QPS = cmp.Or(c.QPS, new(int32(defaultEventQPS)))
	c.Burst = cmp.Or(c.Burst, defaultEventBurst)
}

func (c *Eviction) apply(f *kubeletv1beta1.KubeletConfiguration) {
	if f.EvictionHard != nil {
		c.Settings.Hard = maps.Clone(f.EvictionHard)
		if ptr.Deref(f.MergeDefaultEvictionSettings, false) {
			c.Settings.Hard = EvictionHard()
			maps.Copy(c.Settings.Hard, f.EvictionHard)
		}
	}
	for to, from := range map[*map[string]string]map[string]string{
		&c.Settings.Soft: f.EvictionSoft, &c.Settings.SoftGrace: f.EvictionSoftGracePeriod, &c.Settings.MinimumReclaim: f.EvictionMinimumReclaim,
	} {
		if from != nil {
			*to = maps.Clone(from)
		}
	}
	override(&c.Transition, f.EvictionPressureTransitionPeriod.Duration)
	override(&c.MaxGrace, int64(f.EvictionMaxPodGracePeriod))
	overrideInverted(&c.NoStorageLimits, f.LocalStorageCapacityIsolation)
}

func (c *Events) apply(f *kubeletv1beta1.KubeletConfiguration) {
	if f.EventRecordQPS != nil {
		c.QPS = new(*f.EventRecordQPS)
	}
	override(&c.Burst, int(f.EventBurst))
}

// ParseTaints parses taints of the form "key=value:effect". The value may be missing. A missing key and a
// missing or unknown effect are an error.
func ParseTaints(list []string) ([]v1.Taint, error) {
	var out []v1.Taint
	for _, s := range list {
		rest, effect, ok := strings.Cut(s, ":")
		key, value, _ := strings.Cut(rest, "=")
		t := v1.Taint{Key: key, Value: value, Effect: v1.TaintEffect(effect)}
		switch {
		case !ok || key == "":
			return nil, fmt.Errorf("invalid taint %q: want key=value:effect", s)
		case t.Effect != v1.TaintEffectNoSchedule && t.Effect != v1.TaintEffectPreferNoSchedule && t.Effect != v1.TaintEffectNoExecute:
			return nil, fmt.Errorf("invalid taint %q: unsupported effect", s)
		}
		out = append(out, t)
	}
	return out, nil
}

// reservable are the resources that can be reserved for the system.
var reservable = []string{"cpu", "memory", "ephemeral-storage", "pid"}

// applyReserved sets the reserved resources of c, and the names of the limits to enforce, to the values of the
// configuration file f. It returns an error if a quantity is not valid or a resource cannot be reserved.
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

// applyNode sets the fields of c for the Node status, parallel image pulls, swap, cgroups and the machine to the
// values of the configuration file f. It returns an error if a value is not valid.
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

// applyShutdown sets the grace periods of a graceful node shutdown in c to those of the configuration file f,
// if it has any. It returns an error if they contradict each other, or if they are set by pod priority and the
// feature gate for that is disabled.
func (c *Config) applyShutdown(f *kubeletv1beta1.KubeletConfiguration) error {
	var by []shutdown.Period
	for _, p := range f.ShutdownGracePeriodByPodPriority {
		by = append(by, shutdown.Period{Priority: p.Priority, Grace: time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	if len(by) > 0 && f.FeatureGates != nil && !featuregates.Set(f.FeatureGates).Enabled(GateShutdownByPriority, true) {
		return errors.New("shutdownGracePeriodByPodPriority requires the feature gate GracefulNodeShutdownBasedOnPodPriority")
	}
	periods, err := shutdown.Periods(f.ShutdownGracePeriod.Duration, f.ShutdownGracePeriodCriticalPods.Duration, by)
	if err == nil && len(periods) > 0 {
		c.Machine.Shutdown = periods
	}
	return err
}
