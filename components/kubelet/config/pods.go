package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/kubelet/pod/dnsconf"
	"hyperkube/components/kubelet/pod/pods"
)

// StaticPods configures from where the kubelet reads the manifests of static pods: a directory, a URL or both.
type StaticPods struct {
	// Dir is the directory of static pod manifests. Empty means no directory.
	Dir string
	// URL is the address from which manifests are fetched every Check, 20 seconds by default, with
	// Header. Empty means no URL.
	URL    string
	Header http.Header
	Check  time.Duration
}

func (c *StaticPods) complete() { c.Check = cmp.Or(c.Check, defaultManifestCheck) }

// Containers configures what applies to the containers of all pods, such as sysctls and the number of processes.
type Containers struct {
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

func (c *Containers) complete() {
	c.CPUQuotaPeriod = cmp.Or(c.CPUQuotaPeriod, defaultCPUQuotaPeriod)
	c.CrashMax = cmp.Or(c.CrashMax, defaultCrashMax)
}

// DNS configures DNS resolution in pods.
type DNS struct {
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

func (c *DNS) complete() {
	if !c.NoResolvConf && c.ResolvConf == "" {
		c.ResolvConf = dnsconf.Upstream()
	}
}

// Images configures the image pulls, with their rate limits and credentials, and the garbage collection of images.
type Images struct {
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

func (c *Images) complete() {
	c.PullQPS = cmp.Or(c.PullQPS, new(int32(defaultPullQPS)))
	c.PullBurst = cmp.Or(c.PullBurst, defaultPullBurst)
	c.Verification = cmp.Or(c.Verification, kubeletv1beta1.NeverVerifyPreloadedImages)
	c.GCHigh = cmp.Or(c.GCHigh, defaultImageGCHigh)
	c.GCLow = cmp.Or(c.GCLow, min(defaultImageGCLow, c.GCHigh))
	c.MinAge = cmp.Or(c.MinAge, defaultImageMinAge)
}

// Logs configures the rotation of container logs.
type Logs struct {
	// MaxSize, in bytes, and MaxFiles are limits per container, 10 MiB and 5 by default.
	MaxSize  int64
	MaxFiles int
	// Interval is the period in which log sizes are checked, 10 seconds by default.
	Interval time.Duration
}

func (c *Logs) complete() {
	c.MaxSize = cmp.Or(c.MaxSize, defaultLogMaxSize)
	c.MaxFiles = cmp.Or(c.MaxFiles, defaultLogMaxFiles)
	c.Interval = cmp.Or(c.Interval, defaultLogInterval)
}

func (c *StaticPods) apply(f *kubeletv1beta1.KubeletConfiguration) {
	override(&c.Dir, f.StaticPodPath)
	override(&c.URL, f.StaticPodURL)
	if len(f.StaticPodURLHeader) > 0 {
		c.Header = http.Header{}
		for name, values := range f.StaticPodURLHeader {
			for _, v := range values {
				c.Header.Add(name, v)
			}
		}
	}
	override(&c.Check, f.HTTPCheckFrequency.Duration)
}

func (c *Containers) apply(f *kubeletv1beta1.KubeletConfiguration) {
	overridePtr(&c.PidsLimit, f.PodPidsLimit)
	overridePtr(&c.SeccompDefault, f.SeccompDefault)
	overrideInverted(&c.NoCPUQuota, f.CPUCFSQuota)
	if f.CPUCFSQuotaPeriod != nil {
		override(&c.CPUQuotaPeriod, f.CPUCFSQuotaPeriod.Duration)
	}
	if f.DefaultPodSysctls != nil {
		c.Sysctls = maps.Clone(f.DefaultPodSysctls)
	}
	if len(f.AllowedUnsafeSysctls) > 0 {
		c.AllowedUnsafeSysctls = f.AllowedUnsafeSysctls
	}
	overridePtr(&c.SingleOOMKill, f.SingleProcessOOMKill)
	if f.MemoryThrottlingFactor != nil {
		c.MemoryThrottling = new(*f.MemoryThrottlingFactor)
	}
	if f.MemoryReservationPolicy != "" {
		c.TieredMemory = f.MemoryReservationPolicy == kubeletv1beta1.TieredReservationMemoryReservationPolicy
	}
	if f.CrashLoopBackOff.MaxContainerRestartPeriod != nil {
		override(&c.CrashMax, f.CrashLoopBackOff.MaxContainerRestartPeriod.Duration)
	}
}

func (c *DNS) apply(f *kubeletv1beta1.KubeletConfiguration) {
	override(&c.Domain, f.ClusterDomain)
	if len(f.ClusterDNS) > 0 {
		c.Servers = f.ClusterDNS
	}
	if f.ResolverConfig != nil {
		c.ResolvConf, c.NoResolvConf = *f.ResolverConfig, *f.ResolverConfig == ""
	}
}

func (c *Images) apply(f *kubeletv1beta1.KubeletConfiguration) {
	override(&c.Endpoint, f.ImageServiceEndpoint)
	if f.RegistryPullQPS != nil {
		c.PullQPS = new(*f.RegistryPullQPS)
	}
	override(&c.PullBurst, int(f.RegistryBurst))
	override(&c.Verification, f.ImagePullCredentialsVerificationPolicy)
	if f.PreloadedImagesVerificationAllowlist != nil {
		c.Allowlist = slices.Clone(f.PreloadedImagesVerificationAllowlist)
	}
	overrideNumber(&c.GCHigh, f.ImageGCHighThresholdPercent)
	overrideNumber(&c.GCLow, f.ImageGCLowThresholdPercent)
	override(&c.MinAge, f.ImageMinimumGCAge.Duration)
	override(&c.MaxAge, f.ImageMaximumGCAge.Duration)
}

func (c *Logs) apply(f *kubeletv1beta1.KubeletConfiguration) error {
	overrideNumber(&c.MaxFiles, f.ContainerLogMaxFiles)
	if f.ContainerLogMonitorInterval != nil {
		override(&c.Interval, f.ContainerLogMonitorInterval.Duration)
	}
	if f.ContainerLogMaxSize == "" {
		return nil
	}
	q, err := resource.ParseQuantity(f.ContainerLogMaxSize)
	if err != nil {
		return fmt.Errorf("containerLogMaxSize: %w", err)
	}
	c.MaxSize = q.Value()
	return nil
}
