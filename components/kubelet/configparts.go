package kubelet

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/dnsconf"
	"hyperkube/components/kubelet/eviction"
	"hyperkube/components/kubelet/pods"
	"hyperkube/components/kubelet/podstate"
	"hyperkube/components/kubelet/shutdown"
	"hyperkube/internal/layout"
)

// Informers may hold more than what concerns this node. Whoever gives one runs it.
// Nil: the kubelet runs its own, of its own pods and Node alone.
type Informers struct {
	Pods, Services, Nodes cache.SharedInformer
}

// NodeConfig is what the Node object tells, and how often.
type NodeConfig struct {
	// IPs are the node's addresses, the primary one first, at most one of each
	// family. Empty: that of the default route's interface.
	IPs []netip.Addr
	// Labels and Taints are given to the Node when it is registered.
	Labels map[string]string
	Taints []v1.Taint
	// NoRegister: the Node is there already and is only kept.
	NoRegister bool
	// Unschedulable: the Node is registered so.
	Unschedulable bool
	// ProviderID is as in KubeletConfiguration.
	ProviderID string
	// PodCIDR is told to the runtime until the Node has one of its own.
	PodCIDR string
	// MaxPods is 110 by default; PodsPerCore bounds it by the number of CPUs, 0
	// does not.
	MaxPods, PodsPerCore int64
	// Update is how often the Node's status is computed, 10 seconds; Report how
	// often it is sent when nothing changed, 5 minutes; Lease is 40 seconds, and
	// renewed at a quarter of it.
	Update, Report, Lease time.Duration
	// MaxImages is how many images the status lists, nil: 50; negative: all.
	MaxImages *int32
}

func (c *NodeConfig) complete() {
	c.MaxPods = cmp.Or(c.MaxPods, 110)
	c.Update = cmp.Or(c.Update, 10*time.Second)
	c.Report = cmp.Or(c.Report, 5*time.Minute)
	c.Lease = cmp.Or(c.Lease, 40*time.Second)
	c.MaxImages = cmp.Or(c.MaxImages, new(int32(50)))
}

// MachineConfig is what the machine must be like, and what becomes of the kubelet on it.
type MachineConfig struct {
	// FailSwapOn and FailCgroupV1 refuse to run on a machine that has swap, or
	// cgroups of version 1; ProtectKernel on one whose kernel is not set as
	// the kubelet wants it.
	FailSwapOn, FailCgroupV1, ProtectKernel bool
	// OOMScore is that of this process; -999 by default.
	OOMScore *int
	// Shutdown is how long pods may take when the machine shuts down, by their
	// priority; empty: the machine does not wait.
	Shutdown []shutdown.Period
}

// usualOOMScore makes the kernel kill pods, and whatever else the machine runs, before
// the kubelet, without which nobody would start them again.
const usualOOMScore = -999

func (c *MachineConfig) complete() { c.OOMScore = cmp.Or(c.OOMScore, new(usualOOMScore)) }

// StaticPods is where the manifests of static pods are.
type StaticPods struct {
	// Dir is their directory; empty: none.
	Dir string
	// URL is where more of them are fetched from each Check, 20 seconds, with
	// Header; empty: from nowhere.
	URL    string
	Header http.Header
	Check  time.Duration
}

func (c *StaticPods) complete() { c.Check = cmp.Or(c.Check, 20*time.Second) }

// ContainerConfig is what each container and pod gets.
type ContainerConfig struct {
	// Sysctls are set in all pods unless they say otherwise; AllowedUnsafeSysctls
	// are those that pods may set beyond the safe ones.
	Sysctls              map[string]string
	AllowedUnsafeSysctls []string
	// PidsLimit bounds the processes of each pod; 0: no bound.
	PidsLimit int64
	// SeccompDefault is as in KubeletConfiguration.
	SeccompDefault bool
	// NoCPUQuota: limits of CPU are not enforced, and else in each CPUQuotaPeriod,
	// 100 ms.
	NoCPUQuota     bool
	CPUQuotaPeriod time.Duration
	// LimitedSwap lets burstable pods have swap in proportion to the memory that
	// they ask for, on cgroup version 2; without it pods have none.
	LimitedSwap bool
	// SingleOOMKill: of a container on cgroup version 2 that has no memory left
	// the kernel kills one process and not all.
	SingleOOMKill bool
	// MemoryThrottling is memoryThrottlingFactor; nil: nobody is slowed down.
	MemoryThrottling *float64
	// TieredMemory: on cgroup version 2 the memory that pods ask for is kept for them.
	TieredMemory bool
	// CrashMax is the longest that a restart waits after crashes; 5 minutes.
	CrashMax time.Duration
	// Dead is which containers that have ended are kept.
	Dead pods.DeadContainers
}

func (c *ContainerConfig) complete() {
	c.CPUQuotaPeriod = cmp.Or(c.CPUQuotaPeriod, usualQuotaPeriod)
	c.CrashMax = cmp.Or(c.CrashMax, podstate.CrashMax)
}

// DNSConfig is what pods resolve names with.
type DNSConfig struct {
	// Servers and Domain are the cluster's. Without a domain, as by default, pods
	// search that of no cluster.
	Servers []string
	Domain  string
	// ResolvConf is the node's resolver configuration for pods that want it;
	// found by default. NoResolvConf: there is none, and such pods are told of a
	// name server on their own loopback.
	ResolvConf   string
	NoResolvConf bool
}

func (c *DNSConfig) complete() {
	if !c.NoResolvConf && c.ResolvConf == "" {
		c.ResolvConf = dnsconf.Upstream()
	}
}

// ImageConfig is how images come and go.
type ImageConfig struct {
	// Endpoint is the socket of images, if not the runtime's.
	Endpoint string
	// PullQPS and PullBurst bound how many pulls begin in a second, 5 and 10;
	// 0 QPS is no bound. ParallelPulls is how many are under way at a time; 0: no
	// bound.
	PullQPS                  *int32
	PullBurst, ParallelPulls int
	// CredentialProviders is a CredentialProviderConfig, or a folder of them, and
	// CredentialProviderDir where their programs are; empty: there are none.
	CredentialProviders, CredentialProviderDir string
	// Verification is who has to show credentials for images that are there, and
	// Allowlist which images it lets be; NeverVerifyPreloadedImages by default.
	Verification kubeletv1beta1.ImagePullCredentialsVerificationPolicy
	Allowlist    []string
	// GCHigh and GCLow are percentages of the disk: above the one unused images
	// are removed until it is below the other. 85 and 80.
	GCHigh, GCLow int
	// MinAge is how long an unused image stays at least; 2 minutes. MaxAge is
	// how long it stays though there is room; 0: for ever.
	MinAge, MaxAge time.Duration
}

func (c *ImageConfig) complete() {
	c.PullQPS = cmp.Or(c.PullQPS, new(int32(5)))
	c.PullBurst = cmp.Or(c.PullBurst, 10)
	c.Verification = cmp.Or(c.Verification, kubeletv1beta1.NeverVerifyPreloadedImages)
	c.GCHigh = cmp.Or(c.GCHigh, 85)
	c.GCLow = cmp.Or(c.GCLow, min(80, c.GCHigh))
	c.MinAge = cmp.Or(c.MinAge, 2*time.Minute)
}

// LogConfig bounds containers' logs.
type LogConfig struct {
	// MaxSize in bytes and MaxFiles are of each container: 10 MiB and 5 by default.
	MaxSize  int64
	MaxFiles int
	// Interval is how often logs are looked at for their size; 10 seconds.
	Interval time.Duration
}

func (c *LogConfig) complete() {
	c.MaxSize = cmp.Or(c.MaxSize, 10<<20)
	c.MaxFiles = cmp.Or(c.MaxFiles, 5)
	c.Interval = cmp.Or(c.Interval, 10*time.Second)
}

// EvictionConfig is when the node is short of something, and what pods may do then.
type EvictionConfig struct {
	// Settings are the thresholds, as in {"memory.available": "100Mi"}; the hard
	// ones are upstream's by default.
	Settings eviction.Settings
	// Transition is how long a pressure is told after it has passed, 5 minutes;
	// MaxGrace the most seconds that a pod has to end at a soft threshold.
	Transition time.Duration
	MaxGrace   int64
	// NoStorageLimits: limits of local storage are not enforced.
	NoStorageLimits bool

	thresholds []eviction.Threshold // of Settings, once validated
}

func (c *EvictionConfig) complete() {
	if c.Settings.Hard == nil {
		c.Settings.Hard = defaultEvictionHard()
	}
	c.Transition = cmp.Or(c.Transition, 5*time.Minute)
}

// defaultEvictionHard are the hard thresholds of who says nothing.
func defaultEvictionHard() map[string]string {
	return map[string]string{
		"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
		"imagefs.available": "15%", "imagefs.inodesFree": "5%",
	}
}

// ReservedConfig is what pods cannot have.
type ReservedConfig struct {
	// All is what the machine keeps for itself, out of the allocatable.
	All v1.ResourceList
	// Enforce names whose limits are enforced: "pods" (all together get no more
	// than the allocatable; the default), "kube-reserved" and "system-reserved"
	// (their cgroups get no more than what is reserved). "none" is nobody.
	Enforce []string
	// KubeCgroup and SystemCgroup are the latter's cgroups, and Kube and System
	// their limits.
	KubeCgroup, SystemCgroup string
	Kube, System             v1.ResourceList
}

// What ReservedConfig.Enforce names.
const (
	enforcePods   = "pods"
	enforceKube   = "kube-reserved"
	enforceSystem = "system-reserved"
	// of which only the CPU, which can be had back, is enforced.
	enforceKubeCPU   = "kube-reserved-compressible"
	enforceSystemCPU = "system-reserved-compressible"
)

// complete fills what is empty; cgroups tells whether pods have some.
func (c *ReservedConfig) complete(cgroups bool) {
	switch {
	case c.Enforce != nil:
	case cgroups:
		c.Enforce = []string{enforcePods}
	default:
		c.Enforce = []string{"none"}
	}
}

// enforces tells whether Enforce has name.
func (c *ReservedConfig) enforces(name string) bool { return slices.Contains(c.Enforce, name) }

// validate checks Enforce; cgroups tells whether pods have some.
func (c *ReservedConfig) validate(cgroups bool) error {
	for _, name := range c.Enforce {
		switch {
		case name == "none" && len(c.Enforce) > 1:
			return errors.New("enforceNodeAllocatable: none goes with nothing else")
		case name == "none", name == enforcePods && cgroups:
		case name == enforcePods:
			return errors.New("enforceNodeAllocatable: pods needs cgroupsPerQOS")
		case (name == enforceKube || name == enforceKubeCPU) && c.KubeCgroup == "":
			return fmt.Errorf("enforceNodeAllocatable: %s needs kubeReservedCgroup", name)
		case (name == enforceSystem || name == enforceSystemCPU) && c.SystemCgroup == "":
			return fmt.Errorf("enforceNodeAllocatable: %s needs systemReservedCgroup", name)
		case name == enforceKubeCPU && c.enforces(enforceKube), name == enforceSystemCPU && c.enforces(enforceSystem):
			return fmt.Errorf("enforceNodeAllocatable: %s does not go with the same that is not compressible", name)
		case name != enforceKube && name != enforceSystem && name != enforceKubeCPU && name != enforceSystemCPU:
			return fmt.Errorf("enforceNodeAllocatable: unsupported %q: want none, pods, kube-reserved, system-reserved, kube-reserved-compressible or system-reserved-compressible", name)
		}
	}
	return nil
}

// CgroupConfig is how cgroups are made.
type CgroupConfig struct {
	// Off: pods get no cgroups of their own, for machines where the kubelet may
	// not make any.
	Off bool
	// Systemd: they are named as systemd's slices, for a runtime that does not
	// tell how it wants them named.
	Systemd bool
	// Own is the cgroup that the kubelet's process goes into, made if it is
	// missing; empty: it stays where it is.
	Own string
	// System is the cgroup that what runs in the root cgroup goes into, made if
	// it is missing; empty: everything stays where it is.
	System string
}

// CPUConfig is who has CPUs of their own.
type CPUConfig struct {
	// Static gives containers of guaranteed pods that ask for whole CPUs some of
	// their own. Whole, Strict, ByCache and Spread are its options
	// full-pcpus-only, strict-cpu-reservation, prefer-align-cpus-by-uncorecache
	// and distribute-cpus-across-numa.
	Static, Whole, Strict, ByCache, Spread bool
	// Reserved are never anybody's own; by default as many as are reserved.
	Reserved cpuset.CPUSet
}

// MemoryConfig is who has memory of their own.
type MemoryConfig struct {
	// Static gives containers of guaranteed pods memory on as few NUMA nodes as
	// can be.
	Static bool
	// Reserved are the bytes of each kind that are set aside on each node; in all
	// they are what ReservedConfig.All and the hard threshold of eviction are.
	Reserved map[int]map[v1.ResourceName]int64
}

// TopologyPolicy is what the topology manager is told, how near to each other what a
// container has is to be, in the words of a KubeletConfiguration.
type TopologyPolicy struct {
	Policy, Scope string
	Options       map[string]string
}

// ServerConfig is where the kubelet is asked, and what it shows.
type ServerConfig struct {
	// Off: the HTTPS server is not run.
	Off bool
	// Address and Port of the HTTPS server: all addresses and Layout's port by
	// default.
	Address string
	Port    int
	// HealthzAddress and HealthzPort are where the health check is: loopback by
	// default, and Layout's port; a negative one: nowhere.
	HealthzAddress string
	HealthzPort    int
	// ReadOnlyPort serves pods, stats and metrics to everybody, without TLS; zero:
	// nothing does.
	ReadOnlyPort int
	// Certificate of the HTTPS server. Nil: one is made and signed by itself.
	// It is asked at each connection, so that it can be renewed.
	// CertificateKept: Config.Metrics tell of it, too.
	Certificate     func() (*tls.Certificate, error)
	CertificateKept bool
	// TLSMinVersion, CipherSuites and Curves, the key exchanges, are of
	// crypto/tls; zero is Go's choice.
	TLSMinVersion uint16
	CipherSuites  []uint16
	Curves        []tls.CurveID
	// StreamIdle ends exec, attach and port-forward that are silent for so long;
	// 4 hours.
	StreamIdle time.Duration
	// NoDebug: no logs, exec, attach, port-forward and profiles are served;
	// NoProfiling and NoNodeLogs: no profiles, no logs of the node's alone.
	NoDebug, NoProfiling, NoNodeLogs bool
	// NodeLogQuery answers queries for the logs of the node's services.
	NodeLogQuery bool
	// ContentionProfile makes the process note who waits for locks.
	ContentionProfile bool
}

func (c *ServerConfig) complete() {
	c.Port = cmp.Or(c.Port, layout.PortKubelet)
	c.HealthzAddress = cmp.Or(c.HealthzAddress, "127.0.0.1")
	c.HealthzPort = cmp.Or(c.HealthzPort, layout.PortKubeletHealthz)
	c.StreamIdle = cmp.Or(c.StreamIdle, 4*time.Hour)
}

// AccessConfig is who may ask the kubelet.
type AccessConfig struct {
	// ClientCA verifies clients' certificates; nil: none is accepted.
	ClientCA *x509.CertPool
	// Anonymous requests are let through to authorisation.
	Anonymous bool
	// AlwaysAllow: who is authenticated may do everything.
	AlwaysAllow bool
	// NoTokens: bearer tokens are not accepted. TokenTTL, AllowTTL and DenyTTL
	// are how long the API server's answers about who someone is and what they
	// may do hold: 2 minutes, 5 minutes and 30 seconds.
	NoTokens                    bool
	TokenTTL, AllowTTL, DenyTTL time.Duration
}

func (c *AccessConfig) complete() {
	c.TokenTTL = cmp.Or(c.TokenTTL, 2*time.Minute)
	c.AllowTTL = cmp.Or(c.AllowTTL, 5*time.Minute)
	c.DenyTTL = cmp.Or(c.DenyTTL, 30*time.Second)
}

// EventConfig bounds how many events are told in a second: QPS, 50, and Burst, 100. 0 QPS
// is no bound.
type EventConfig struct {
	QPS   *int32
	Burst int
}

func (c *EventConfig) complete() {
	c.QPS = cmp.Or(c.QPS, new(int32(50)))
	c.Burst = cmp.Or(c.Burst, 100)
}
