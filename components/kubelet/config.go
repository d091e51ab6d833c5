// Package kubelet runs the pods that are bound to this node, through any
// container runtime that serves CRI v1, and tells the API server of them and
// of the node.
//
// The parts, from the pure to the worldly: podstate decides what happens to a
// pod; env, dnsconf, volume, images, probe and podlogs each know one thing that
// a pod needs; pods does what podstate decided, one goroutine a pod; nodestatus
// keeps the Node and its lease; server answers logs, exec and stats. This
// package puts them together.
package kubelet

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"crypto/tls"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/dnsconf"
	"hyperkube/components/kubelet/eviction"
	"hyperkube/components/kubelet/pods"
	"hyperkube/components/kubelet/podstate"
	"hyperkube/components/kubelet/shutdown"
	"hyperkube/components/kubelet/topology"
	"hyperkube/internal/client"
	"hyperkube/internal/featuregates"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
	"hyperkube/internal/zpages"
)

// Policies rules the network of pods. Its methods are called by several goroutines.
type Policies interface {
	// Expect returns once the rules of a pod hold for its addresses.
	Expect(ctx context.Context, pod *v1.Pod, ips []string) error
	// Forget says that nothing of a pod runs any more.
	Forget(pod types.UID)
}

// Config is all that a kubelet needs to know. New fills what is left empty as
// the comments say, and validates it.
type Config struct {
	// NodeName is the node's name in the API. Required.
	NodeName string
	// Layout says where everything is. The zero value is layout.Default().
	Layout layout.Node
	// Clients is the way to the API, as user system:node:NodeName. Nil for a
	// kubelet that runs static pods alone.
	Clients *client.Clients
	// Tracing is where it is told how long things take; nil: nowhere.
	Tracing *tracingapi.TracingConfiguration
	// Metrics are told with the kubelet's own; each has names of its own.
	// ServingKept: they tell of the certificate that is shown, too.
	Metrics     []prometheus.Collector
	ServingKept bool
	// Pods, Services and Nodes are informers to use instead of the kubelet's
	// own; they may hold more than what concerns this node. Whoever gives one
	// runs it. Nil: the kubelet runs its own, of its own pods and Node alone.
	Pods, Services, Nodes cache.SharedInformer
	// Endpoint of the container runtime, a socket's path; Layout's by default.
	Endpoint string
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
	// ClusterDNS and ClusterDomain are what pods resolve names with. Without a
	// domain, as by default, they search that of no cluster.
	ClusterDNS    []string
	ClusterDomain string
	// ResolvConf is the node's resolver configuration for pods that want it;
	// found by default. NoResolvConf: there is none, and such pods are told of a
	// name server on their own loopback.
	ResolvConf   string
	NoResolvConf bool
	// Shutdown is how long pods may take when the machine shuts down, by their
	// priority; empty: the machine does not wait.
	Shutdown []shutdown.Period
	// StaticPods is the directory of static pods' manifests; empty: none.
	StaticPods string
	// StaticPodURL is where more of them are fetched from each HTTPCheck, 20
	// seconds, with StaticPodHeader; empty: from nowhere.
	StaticPodURL    string
	StaticPodHeader http.Header
	HTTPCheck       time.Duration
	// Gates are feature gates that were set.
	Gates featuregates.Set
	// PullQPS and PullBurst bound how many pulls begin in a second, 5 and 10;
	// EventQPS and EventBurst how many events are told, 50 and 100. 0 QPS is no
	// bound.
	PullQPS, EventQPS     *int32
	PullBurst, EventBurst int
	// Dead is which containers that have ended are kept.
	Dead pods.DeadContainers
	// NoTokens: bearer tokens are not accepted. TokenTTL, AllowTTL and DenyTTL
	// are how long the API server's answers about who someone is and what they
	// may do hold: 2 minutes, 5 minutes and 30 seconds.
	NoTokens                    bool
	TokenTTL, AllowTTL, DenyTTL time.Duration
	// Curves are the key exchanges of the HTTPS server; empty is Go's choice.
	Curves []tls.CurveID
	// StreamIdle ends exec, attach and port-forward that are silent for so long;
	// 4 hours.
	StreamIdle time.Duration
	// RuntimeTimeout is how long the runtime may take for one thing, but for pulls;
	// 2 minutes.
	RuntimeTimeout time.Duration
	// ContentionProfile makes the process note who waits for locks.
	ContentionProfile bool
	// ImageEndpoint is the socket of images, if not the runtime's.
	ImageEndpoint string
	// SingleOOMKill: of a container on cgroup version 2 that has no memory left
	// the kernel kills one process and not all.
	SingleOOMKill bool
	// MemoryThrottling is memoryThrottlingFactor; nil: nobody is slowed down.
	MemoryThrottling *float64
	// TieredMemory: on cgroup version 2 the memory that pods ask for is kept for them.
	TieredMemory bool
	// CredentialProviders is a CredentialProviderConfig, or a folder of them, and
	// CredentialProviderDir where their programs are; empty: there are none.
	CredentialProviders, CredentialProviderDir string
	// Verification is who has to show credentials for images that are there, and
	// Allowlist which images it lets be; NeverVerifyPreloadedImages by default.
	Verification kubeletv1beta1.ImagePullCredentialsVerificationPolicy
	Allowlist    []string
	// PodSysctls are set in all pods unless they say otherwise.
	PodSysctls map[string]string
	// MaxPods is 110 by default; PodsPerCore bounds it by the number of CPUs, 0
	// does not.
	MaxPods, PodsPerCore int64
	// PodPidsLimit bounds the processes of each pod; 0: no bound.
	PodPidsLimit int64
	// PodCIDR is told to the runtime until the Node has one of its own.
	PodCIDR string
	// Reserved is what the machine keeps for itself, out of the allocatable.
	Reserved v1.ResourceList
	// Eviction thresholds, as in {"memory.available": "100Mi"}; the hard ones
	// are upstream's by default.
	Eviction eviction.Settings
	// EvictionTransition is how long a pressure is told after it has passed, 5
	// minutes; EvictionMaxGrace the most seconds that a pod has to end at a soft
	// threshold.
	EvictionTransition time.Duration
	EvictionMaxGrace   int64
	// NoStorageLimits: limits of local storage are not enforced.
	NoStorageLimits bool
	// Enforce names whose limits are enforced: "pods" (all together get no more
	// than the allocatable; the default), "kube-reserved" and "system-reserved"
	// (their cgroups get no more than what is reserved). "none" is nobody.
	Enforce []string
	// KubeReservedCgroup and SystemReservedCgroup are the latter's cgroups, and
	// KubeReserved and SystemReserved their limits.
	KubeReservedCgroup, SystemReservedCgroup string
	KubeReserved, SystemReserved             v1.ResourceList
	// SystemdCgroups: cgroups are named as systemd's slices, for a runtime that does
	// not tell how it wants them named.
	SystemdCgroups bool
	// OwnCgroup is the cgroup that the kubelet's process goes into, made if it is
	// missing; empty: it stays where it is.
	OwnCgroup string
	// StaticCPUs gives containers of guaranteed pods that ask for whole CPUs some
	// of their own; WholeCores and StrictCPUs are its options full-pcpus-only
	// and strict-cpu-reservation. ReservedCPUs are never anybody's own; by
	// default as many as are reserved.
	StaticCPUs, WholeCores, StrictCPUs bool
	ReservedCPUs                       cpuset.CPUSet
	// CPUsByCache and SpreadCPUs are its options prefer-align-cpus-by-uncorecache
	// and distribute-cpus-across-numa.
	CPUsByCache, SpreadCPUs bool
	// StaticMemory gives containers of guaranteed pods memory on as few NUMA
	// nodes as can be. ReservedMemory are the bytes of each kind that are set
	// aside on each node; in all they are what Reserved and the hard threshold of
	// eviction are.
	StaticMemory   bool
	ReservedMemory map[int]map[v1.ResourceName]int64
	// Topology is how near to each other what a container has is to be.
	Topology TopologyPolicy
	// ServicesReady is closed once pods reach services; until then the node is
	// not ready, for the first packet of a connection that comes earlier keeps
	// the whole connection from its way. Nil: it is not waited for.
	ServicesReady <-chan struct{}
	// NoServer: the HTTPS server is not run.
	NoServer bool
	// Address and Port of the HTTPS server: all addresses and Layout's port by
	// default. HealthzPort is that of the health check on loopback; negative:
	// none.
	Address           string
	Port, HealthzPort int
	// ReadOnlyPort serves pods, stats and metrics to everybody, without TLS; zero:
	// nothing does.
	ReadOnlyPort int
	// Certificate of the HTTPS server. Nil: one is made and signed by itself.
	// It is asked at each connection, so that it can be renewed.
	Certificate func() (*tls.Certificate, error)
	// ClientCA verifies clients' certificates; nil: none is accepted.
	ClientCA *x509.CertPool
	// Anonymous requests are let through to authorisation.
	Anonymous bool
	// AlwaysAllow: who is authenticated may do everything.
	AlwaysAllow bool
	// LogMaxSize in bytes and LogMaxFiles bound a container's log: 10 MiB and 5
	// by default.
	LogMaxSize  int64
	LogMaxFiles int
	// ImageGCHigh and ImageGCLow are percentages of the disk: above the one
	// unused images are removed until it is below the other. 85 and 80.
	ImageGCHigh, ImageGCLow int
	// ImageMinAge is how long an unused image stays at least; 2 minutes.
	// ImageMaxAge is how long it stays though there is room; 0: for ever.
	ImageMinAge, ImageMaxAge time.Duration
	// ParallelPulls is how many images are pulled at a time; 0: no bound.
	ParallelPulls int
	// LogInterval is how often logs are looked at for their size; 10 seconds.
	LogInterval time.Duration
	// NodeUpdate is how often the Node's status is computed, 10 seconds;
	// NodeReport how often it is sent when nothing changed, 5 minutes;
	// LeaseDuration is 40 seconds, and renewed at a quarter of it. MaxImages is
	// how many images the status lists, nil: 50; negative: all.
	NodeUpdate, NodeReport, LeaseDuration time.Duration
	MaxImages                             *int32
	// CrashMax is the longest that a restart waits after crashes; 5 minutes.
	CrashMax time.Duration
	// LimitedSwap lets burstable pods have swap in proportion to the memory that
	// they ask for, on cgroup version 2; without it pods have none.
	LimitedSwap bool
	// FailSwapOn and FailCgroupV1 refuse to run on a machine that has swap, or
	// cgroups of version 1; ProtectKernel on one whose kernel is not set as
	// the kubelet wants it.
	FailSwapOn, FailCgroupV1, ProtectKernel bool
	// OOMScore is that of this process; -999 by default.
	OOMScore *int
	// NoDebug: no logs, exec, attach, port-forward and profiles are served;
	// NoProfiling and NoNodeLogs: no profiles, no logs of the node's alone.
	NoDebug, NoProfiling, NoNodeLogs bool
	// NodeLogQuery answers queries for the logs of the node's services.
	NodeLogQuery bool
	// Flags are those with which the kubelet was started; it may be nil.
	Flags zpages.Flags
	// Level is changed by /debug/flags/v; nil: it is as it is.
	Level *slog.LevelVar
	// HealthzAddress is where the health check is served; loopback by default.
	HealthzAddress string
	// TLSMinVersion and CipherSuites are of crypto/tls; zero is Go's choice.
	TLSMinVersion uint16
	CipherSuites  []uint16
	// Policies rules the network of pods; nil: nobody does, or what does asks nobody to wait.
	Policies Policies
	// NoCgroups: pods get no cgroups of their own, for machines where the
	// kubelet may not make any.
	NoCgroups bool
	// SeccompDefault, CPUCFSQuotaOff, CPUCFSQuotaPeriod (100 ms),
	// AllowedUnsafeSysctls and ProviderID are as in KubeletConfiguration.
	SeccompDefault       bool
	CPUCFSQuotaOff       bool
	CPUCFSQuotaPeriod    time.Duration
	AllowedUnsafeSysctls []string
	ProviderID           string
	// File is what /configz shows; nil: what follows from the rest.
	File *kubeletv1beta1.KubeletConfiguration
	// Journal records changes to the host; nil records nothing.
	Journal *hostchange.Journal
	// Log is where the kubelet says what it does; slog.Default() by default.
	Log *slog.Logger

	thresholds []eviction.Threshold // of Eviction, once validated
}

// TopologyPolicy is what the topology manager is told, in the words of a
// KubeletConfiguration.
type TopologyPolicy struct {
	Policy, Scope string
	Options       map[string]string
}

// usualOOMScore makes the kernel kill pods, and whatever else the machine runs, before
// the kubelet, without which nobody would start them again.
const usualOOMScore = -999

// defaultEvictionHard are the hard thresholds of who says nothing.
func defaultEvictionHard() map[string]string {
	return map[string]string{
		"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
		"imagefs.available": "15%", "imagefs.inodesFree": "5%",
	}
}

// complete fills what is empty and validates.
func (c *Config) complete() error {
	if c.Layout == (layout.Node{}) {
		c.Layout = layout.Default()
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&c.Endpoint, c.Layout.RuntimeSocket())
	if !c.NoResolvConf {
		def(&c.ResolvConf, dnsconf.Upstream())
	}
	if c.MaxPods == 0 {
		c.MaxPods = 110
	}
	if c.Port == 0 {
		c.Port = layout.PortKubelet
	}
	if c.HealthzPort == 0 {
		c.HealthzPort = layout.PortKubeletHealthz
	}
	def(&c.HealthzAddress, "127.0.0.1")
	if c.LogInterval == 0 {
		c.LogInterval = 10 * time.Second
	}
	if c.NodeUpdate == 0 {
		c.NodeUpdate = 10 * time.Second
	}
	if c.MaxImages == nil {
		c.MaxImages = new(int32(50))
	}
	if c.OOMScore == nil {
		c.OOMScore = new(usualOOMScore)
	}
	c.completeLimits()
	if c.CrashMax == 0 {
		c.CrashMax = podstate.CrashMax
	}
	if c.LogMaxSize == 0 {
		c.LogMaxSize = 10 << 20
	}
	if c.LogMaxFiles == 0 {
		c.LogMaxFiles = 5
	}
	if c.ImageGCHigh == 0 {
		c.ImageGCHigh = 85
	}
	if c.ImageGCLow == 0 {
		c.ImageGCLow = min(80, c.ImageGCHigh)
	}
	if c.ImageMinAge == 0 {
		c.ImageMinAge = 2 * time.Minute
	}
	if c.NodeReport == 0 {
		c.NodeReport = 5 * time.Minute
	}
	if c.LeaseDuration == 0 {
		c.LeaseDuration = 40 * time.Second
	}
	if c.Enforce == nil {
		c.Enforce = []string{enforcePods}
		if c.NoCgroups {
			c.Enforce = []string{"none"}
		}
	}
	if c.CPUCFSQuotaPeriod == 0 {
		c.CPUCFSQuotaPeriod = 100 * time.Millisecond
	}
	if c.Eviction.Hard == nil {
		c.Eviction.Hard = defaultEvictionHard()
	}
	if c.EvictionTransition == 0 {
		c.EvictionTransition = 5 * time.Minute
	}
	return c.validate()
}

// What Config.Enforce names.
const (
	enforcePods   = "pods"
	enforceKube   = "kube-reserved"
	enforceSystem = "system-reserved"
	// of which only the CPU, which can be had back, is enforced.
	enforceKubeCPU   = "kube-reserved-compressible"
	enforceSystemCPU = "system-reserved-compressible"
)

// enforces tells whether Config.Enforce has name.
func (c *Config) enforces(name string) bool { return slices.Contains(c.Enforce, name) }

func (c *Config) validateEnforce() error {
	for _, name := range c.Enforce {
		switch {
		case name == "none" && len(c.Enforce) > 1:
			return errors.New("enforceNodeAllocatable: none goes with nothing else")
		case name == "none", name == enforcePods && !c.NoCgroups:
		case name == enforcePods:
			return errors.New("enforceNodeAllocatable: pods needs cgroupsPerQOS")
		case (name == enforceKube || name == enforceKubeCPU) && c.KubeReservedCgroup == "":
			return fmt.Errorf("enforceNodeAllocatable: %s needs kubeReservedCgroup", name)
		case (name == enforceSystem || name == enforceSystemCPU) && c.SystemReservedCgroup == "":
			return fmt.Errorf("enforceNodeAllocatable: %s needs systemReservedCgroup", name)
		case name == enforceKubeCPU && c.enforces(enforceKube), name == enforceSystemCPU && c.enforces(enforceSystem):
			return fmt.Errorf("enforceNodeAllocatable: %s does not go with the same that is not compressible", name)
		case name != enforceKube && name != enforceSystem && name != enforceKubeCPU && name != enforceSystemCPU:
			return fmt.Errorf("enforceNodeAllocatable: unsupported %q: want none, pods, kube-reserved, system-reserved, kube-reserved-compressible or system-reserved-compressible", name)
		}
	}
	return nil
}

func (c *Config) validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("the node's name must be given"))
	} else if list := validation.IsDNS1123Subdomain(c.NodeName); len(list) > 0 {
		errs = append(errs, fmt.Errorf("node name %q: %s", c.NodeName, strings.Join(list, "; ")))
	}
	if !filepath.IsAbs(strings.TrimPrefix(c.Endpoint, "unix://")) {
		errs = append(errs, fmt.Errorf("container runtime endpoint %q: want unix:// and an absolute path", c.Endpoint))
	}
	if c.MaxPods < 0 {
		errs = append(errs, errors.New("maxPods must not be negative"))
	}
	if c.PodsPerCore < 0 {
		errs = append(errs, errors.New("podsPerCore must not be negative"))
	}
	if c.CrashMax < time.Second || c.CrashMax > podstate.CrashMax {
		errs = append(errs, fmt.Errorf("crashLoopBackOff.maxContainerRestartPeriod must be between 1s and %v", podstate.CrashMax))
	}
	errs = append(errs, c.validateEnforce(), c.validateLimits())
	_, _, err := topology.Check(c.Topology.Policy, c.Topology.Scope, c.Topology.Options)
	errs = append(errs, err)
	for _, p := range []int{c.Port, c.HealthzPort} {
		if p > 65535 {
			errs = append(errs, fmt.Errorf("port %d is not one", p))
		}
	}
	if c.LogMaxFiles < 2 {
		errs = append(errs, errors.New("containerLogMaxFiles must be greater than 1"))
	}
	if c.ImageGCHigh < c.ImageGCLow || c.ImageGCHigh > 100 || c.ImageGCLow < 0 {
		errs = append(errs, errors.New("imageGCHighThresholdPercent must be at least imageGCLowThresholdPercent, both percentages"))
	}
	for _, ip := range c.ClusterDNS {
		if _, err := netip.ParseAddr(ip); err != nil {
			errs = append(errs, fmt.Errorf("cluster DNS: %w", err))
		}
	}
	if c.thresholds, err = c.Eviction.Thresholds(); err != nil {
		errs = append(errs, err)
	}
	for key, value := range c.Labels {
		if list := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(list) > 0 {
			errs = append(errs, fmt.Errorf("node label %s=%s: %s", key, value, strings.Join(list, "; ")))
		}
	}
	return errors.Join(errs...)
}
