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

	"hyperkube/components/kubelet/node/eviction"
	"hyperkube/components/kubelet/node/shutdown"
	"hyperkube/components/kubelet/pod/dnsconf"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/internal/host/layout"
)

// Informers are shared informers, which may cover more objects than those of this node. Their owner
// runs them. If one is nil, the kubelet runs its own informer, restricted to its pods and its Node.
type Informers struct {
	Pods, Services, Nodes cache.SharedInformer
}

// NodeConfig configures the Node object and how often it is updated.
type NodeConfig struct {
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
	// ProviderID is providerID of KubeletConfiguration.
	ProviderID string
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

func (c *NodeConfig) complete() {
	c.MaxPods = cmp.Or(c.MaxPods, 110)
	c.Update = cmp.Or(c.Update, 10*time.Second)
	c.Report = cmp.Or(c.Report, 5*time.Minute)
	c.Lease = cmp.Or(c.Lease, 40*time.Second)
	c.MaxImages = cmp.Or(c.MaxImages, new(int32(50)))
}

// MachineConfig configures the requirements for the machine, and the kubelet's process on it.
type MachineConfig struct {
	// FailSwapOn, FailCgroupV1 and ProtectKernel make New fail on a machine with swap, with cgroup
	// v1, or with kernel flags other than those that the kubelet requires.
	FailSwapOn, FailCgroupV1, ProtectKernel bool
	// OOMScore is the oom_score_adj of this process, -999 by default.
	OOMScore *int
	// Shutdown are the grace periods of pods by priority when the machine shuts down. If it is
	// empty, the kubelet does not delay the shutdown.
	Shutdown []shutdown.Period
}

// defaultOOMScore makes the kernel kill pods and other processes before the kubelet, because only the
// kubelet can restart the pods.
const defaultOOMScore = -999

func (c *MachineConfig) complete() { c.OOMScore = cmp.Or(c.OOMScore, new(defaultOOMScore)) }

// StaticPodConfig configures the sources of static pods.
type StaticPodConfig struct {
	// Dir is the directory of static pod manifests. Empty means no directory.
	Dir string
	// URL is the address from which manifests are fetched every Check, 20 seconds by default, with
	// Header. Empty means no URL.
	URL    string
	Header http.Header
	Check  time.Duration
}

func (c *StaticPodConfig) complete() { c.Check = cmp.Or(c.Check, 20*time.Second) }

// ContainerConfig configures all containers and pods.
type ContainerConfig struct {
	// Sysctls are set in all pods that do not set them. AllowedUnsafeSysctls are sysctls that pods
	// may set in addition to the safe ones.
	Sysctls              map[string]string
	AllowedUnsafeSysctls []string
	// PidsLimit is the maximum number of processes of each pod. 0 means no limit.
	PidsLimit int64
	// SeccompDefault is seccompDefault of KubeletConfiguration.
	SeccompDefault bool
	// NoCPUQuota disables the enforcement of CPU limits. Otherwise they are enforced in each
	// CPUQuotaPeriod, 100 ms by default.
	NoCPUQuota     bool
	CPUQuotaPeriod time.Duration
	// LimitedSwap allows Burstable pods swap in proportion to their memory requests, on cgroup v2.
	// Without it pods cannot use swap.
	LimitedSwap bool
	// SingleOOMKill makes the kernel kill one process instead of all when a container exceeds its
	// memory limit, on cgroup v2.
	SingleOOMKill bool
	// MemoryThrottling is memoryThrottlingFactor of KubeletConfiguration. Nil disables throttling.
	MemoryThrottling *float64
	// TieredMemory protects the requested memory of pods from reclaim, on cgroup v2.
	TieredMemory bool
	// CrashMax is the maximum restart back-off after crashes, 5 minutes by default.
	CrashMax time.Duration
	// DeadContainers configures how many exited containers are retained.
	DeadContainers pods.DeadContainers
}

func (c *ContainerConfig) complete() {
	c.CPUQuotaPeriod = cmp.Or(c.CPUQuotaPeriod, defaultCPUQuotaPeriod)
	c.CrashMax = cmp.Or(c.CrashMax, podstate.CrashMax)
}

// DNSConfig configures DNS resolution in pods.
type DNSConfig struct {
	// Servers and Domain are the cluster's DNS servers and domain. Without a domain, the default,
	// pods have no cluster search domains.
	Servers []string
	Domain  string
	// ResolvConf is the node's resolver configuration file for pods that inherit it. By default it
	// is detected. NoResolvConf means that there is none: such pods get a name server on their own
	// loopback address.
	ResolvConf   string
	NoResolvConf bool
}

func (c *DNSConfig) complete() {
	if !c.NoResolvConf && c.ResolvConf == "" {
		c.ResolvConf = dnsconf.Upstream()
	}
}

// ImageConfig configures pulls and garbage collection of images.
type ImageConfig struct {
	// Endpoint is the socket of the CRI image service, if it is not the runtime's.
	Endpoint string
	// PullQPS and PullBurst limit the number of pulls that start per second, 5 and 10 by default. 0
	// QPS means no limit. ParallelPulls is the maximum number of concurrent pulls; 0 means no
	// limit.
	PullQPS                  *int32
	PullBurst, ParallelPulls int
	// CredentialProviders is the path of a CredentialProviderConfig, or of a directory of them.
	// CredentialProviderDir is the directory of the provider binaries. Both are empty if there are
	// no providers.
	CredentialProviders, CredentialProviderDir string
	// Verification is the policy that decides which pods must present credentials for images that
	// are present on the node; the default is NeverVerifyPreloadedImages. Allowlist are the images
	// that it exempts.
	Verification kubeletv1beta1.ImagePullCredentialsVerificationPolicy
	Allowlist    []string
	// GCHigh and GCLow are percentages of disk usage: above GCHigh, unused images are removed until
	// the usage is below GCLow. The defaults are 85 and 80.
	GCHigh, GCLow int
	// MinAge is the minimum age of an unused image before it is removed, 2 minutes by default.
	// MaxAge is the age at which an unused image is removed regardless of disk usage; 0 means
	// never.
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

// LogConfig configures the rotation of container logs.
type LogConfig struct {
	// MaxSize, in bytes, and MaxFiles are limits per container, 10 MiB and 5 by default.
	MaxSize  int64
	MaxFiles int
	// Interval is the period in which log sizes are checked, 10 seconds by default.
	Interval time.Duration
}

func (c *LogConfig) complete() {
	c.MaxSize = cmp.Or(c.MaxSize, 10<<20)
	c.MaxFiles = cmp.Or(c.MaxFiles, 5)
	c.Interval = cmp.Or(c.Interval, 10*time.Second)
}

// EvictionConfig configures node-pressure eviction.
type EvictionConfig struct {
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

	thresholds []eviction.Threshold // parsed and validated Settings
}

func (c *EvictionConfig) complete() {
	if c.Settings.Hard == nil {
		c.Settings.Hard = defaultEvictionHard()
	}
	c.Transition = cmp.Or(c.Transition, 5*time.Minute)
}

// defaultEvictionHard returns the default hard thresholds.
func defaultEvictionHard() map[string]string {
	return map[string]string{
		"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
		"imagefs.available": "15%", "imagefs.inodesFree": "5%",
	}
}

// ReservedConfig configures the resources that pods cannot use.
type ReservedConfig struct {
	// All is subtracted from the capacity to compute the allocatable resources.
	All v1.ResourceList
	// Enforce lists the limits to enforce: "pods" (all pods together are limited to the allocatable
	// resources; the default), "kube-reserved" and "system-reserved" (their cgroups are limited to
	// the reserved resources). "none" enforces no limits.
	Enforce []string
	// KubeCgroup and SystemCgroup are the cgroups of "kube-reserved" and "system-reserved". Kube
	// and System are their limits.
	KubeCgroup, SystemCgroup string
	Kube, System             v1.ResourceList
}

// Values of ReservedConfig.Enforce.
const (
	enforcePods   = "pods"
	enforceKube   = "kube-reserved"
	enforceSystem = "system-reserved"
	// Only CPU, which is compressible, is enforced for these.
	enforceKubeCPU   = "kube-reserved-compressible"
	enforceSystemCPU = "system-reserved-compressible"
)

// complete sets defaults. cgroups reports whether pods have cgroups.
func (c *ReservedConfig) complete(cgroups bool) {
	switch {
	case c.Enforce != nil:
	case cgroups:
		c.Enforce = []string{enforcePods}
	default:
		c.Enforce = []string{"none"}
	}
}

// enforces reports whether Enforce contains name.
func (c *ReservedConfig) enforces(name string) bool { return slices.Contains(c.Enforce, name) }

// validate checks Enforce. cgroups reports whether pods have cgroups.
func (c *ReservedConfig) validate(cgroups bool) error {
	for _, name := range c.Enforce {
		switch {
		case name == "none" && len(c.Enforce) > 1:
			return errors.New("enforceNodeAllocatable: none cannot be combined with other values")
		case name == "none", name == enforcePods && cgroups:
		case name == enforcePods:
			return errors.New("enforceNodeAllocatable: pods requires cgroupsPerQOS")
		case (name == enforceKube || name == enforceKubeCPU) && c.KubeCgroup == "":
			return fmt.Errorf("enforceNodeAllocatable: %s requires kubeReservedCgroup", name)
		case (name == enforceSystem || name == enforceSystemCPU) && c.SystemCgroup == "":
			return fmt.Errorf("enforceNodeAllocatable: %s requires systemReservedCgroup", name)
		case name == enforceKubeCPU && c.enforces(enforceKube), name == enforceSystemCPU && c.enforces(enforceSystem):
			return fmt.Errorf("enforceNodeAllocatable: %s cannot be combined with its value that is not compressible", name)
		case name != enforceKube && name != enforceSystem && name != enforceKubeCPU && name != enforceSystemCPU:
			return fmt.Errorf("enforceNodeAllocatable: unsupported %q: want none, pods, kube-reserved, system-reserved, kube-reserved-compressible or system-reserved-compressible", name)
		}
	}
	return nil
}

// CgroupConfig configures cgroups.
type CgroupConfig struct {
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

// CPUConfig configures the CPU manager.
type CPUConfig struct {
	// Static allocates exclusive CPUs to containers of Guaranteed pods that request whole CPUs.
	// Whole, Strict, ByCache and Spread are the policy options full-pcpus-only,
	// strict-cpu-reservation, prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa.
	Static, Whole, Strict, ByCache, Spread bool
	// Reserved are CPUs that are never allocated exclusively. The default number is that of the
	// reserved CPU resource.
	Reserved cpuset.CPUSet
}

// MemoryConfig configures the memory manager.
type MemoryConfig struct {
	// Static allocates containers of Guaranteed pods memory on as few NUMA nodes as possible.
	Static bool
	// Reserved are the bytes of memory and huge pages that are reserved on each NUMA node. Their
	// sum must equal ReservedConfig.All plus the hard eviction threshold.
	Reserved map[int]map[v1.ResourceName]int64
}

// TopologyPolicy configures the topology manager, with the values of KubeletConfiguration.
type TopologyPolicy struct {
	Policy, Scope string
	Options       map[string]string
}

// ServerConfig configures the kubelet's HTTP servers.
type ServerConfig struct {
	// Off disables the HTTPS server.
	Off bool
	// Address and Port are those of the HTTPS server. The default is all addresses and Layout's
	// port.
	Address string
	Port    int
	// HealthzAddress and HealthzPort are those of the health check server. The default is the
	// loopback address and Layout's port. A negative port disables the server.
	HealthzAddress string
	HealthzPort    int
	// ReadOnlyPort is the port of the server that serves pods, stats and metrics without TLS and
	// authentication. Zero disables it.
	ReadOnlyPort int
	// Certificate returns the certificate of the HTTPS server. It is called for each connection, so
	// that the certificate can be renewed. If it is nil, the kubelet uses a self-signed
	// certificate. CertificateKept: Config.Metrics already include the metrics of the certificate.
	Certificate           func() (*tls.Certificate, error)
	CertificateHasMetrics bool
	// TLSMinVersion, CipherSuites and Curves, the key exchange mechanisms, are values of
	// crypto/tls. The zero value means Go's default.
	TLSMinVersion uint16
	CipherSuites  []uint16
	Curves        []tls.CurveID
	// StreamIdle is the idle timeout of exec, attach and port-forward streams, 4 hours by default.
	StreamIdle time.Duration
	// NoDebug disables logs, exec, attach, port-forward and profiles. NoProfiling disables only
	// profiles, NoNodeLogs only the node's logs.
	NoDebug, NoProfiling, NoNodeLogs bool
	// NodeLogQuery enables queries for the logs of the node's services.
	NodeLogQuery bool
	// ContentionProfile enables the profile of lock contention.
	ContentionProfile bool
}

func (c *ServerConfig) complete() {
	c.Port = cmp.Or(c.Port, layout.PortKubelet)
	c.HealthzAddress = cmp.Or(c.HealthzAddress, "127.0.0.1")
	c.HealthzPort = cmp.Or(c.HealthzPort, layout.PortKubeletHealthz)
	c.StreamIdle = cmp.Or(c.StreamIdle, 4*time.Hour)
}

// AccessConfig configures authentication and authorization of the kubelet's clients.
type AccessConfig struct {
	// ClientCA verifies client certificates. If it is nil, none is accepted.
	ClientCA *x509.CertPool
	// Anonymous allows anonymous requests. They are still subject to authorization.
	Anonymous bool
	// AlwaysAllow authorizes every authenticated request.
	AlwaysAllow bool
	// NoTokens disables bearer token authentication. TokenTTL, AllowTTL and DenyTTL are the cache
	// durations of the API server's TokenReview results and of its positive and negative
	// SubjectAccessReview results: 2 minutes, 5 minutes and 30 seconds by default.
	NoTokens                    bool
	TokenTTL, AllowTTL, DenyTTL time.Duration
}

func (c *AccessConfig) complete() {
	c.TokenTTL = cmp.Or(c.TokenTTL, 2*time.Minute)
	c.AllowTTL = cmp.Or(c.AllowTTL, 5*time.Minute)
	c.DenyTTL = cmp.Or(c.DenyTTL, 30*time.Second)
}

// EventConfig limits how many events are sent per second: QPS is 50 and Burst is 100 by default. 0
// QPS means no limit.
type EventConfig struct {
	QPS   *int32
	Burst int
}

func (c *EventConfig) complete() {
	c.QPS = cmp.Or(c.QPS, new(int32(50)))
	c.Burst = cmp.Or(c.Burst, 100)
}
