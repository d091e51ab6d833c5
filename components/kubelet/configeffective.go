package kubelet

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// Effective is the configuration in force in the terms of a file: what the file
// said, what came from elsewhere, and upstream's defaults for the rest. It
// shares nothing with c, which may lack what New completes.
func (c *Config) Effective() *kubeletv1beta1.KubeletConfiguration {
	f := &kubeletv1beta1.KubeletConfiguration{}
	if c.File != nil {
		f = c.File.DeepCopy()
	}
	f.Kind, f.APIVersion = "KubeletConfiguration", kubeletv1beta1.SchemeGroupVersion.String()
	c.effectiveHere(f)
	defaults(f)
	return f
}

// effectiveText is the configuration in force as a file that a log may have: what
// is sent along to get static pods may be secret, and is masked.
func (c *Config) effectiveText() (string, error) {
	f := c.Effective()
	for name := range f.StaticPodURLHeader {
		f.StaticPodURLHeader[name] = []string{"<masked>"}
	}
	text, err := yaml.Marshal(f)
	if err != nil {
		return "", fmt.Errorf("encoding the configuration in force: %w", err)
	}
	return string(text), nil
}

// effectiveHere writes what c holds itself.
func (c *Config) effectiveHere(f *kubeletv1beta1.KubeletConfiguration) {
	seconds := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	f.StaticPodPath, f.PodLogsDir, f.ContainerRuntimeEndpoint = c.StaticPods, c.Layout.PodLogs, "unix://"+c.Endpoint
	f.Tracing = c.Tracing.DeepCopy()
	f.ClusterDNS, f.ClusterDomain, f.PodCIDR, f.ProviderID = slices.Clone(c.ClusterDNS), c.ClusterDomain, c.PodCIDR, c.ProviderID
	f.Address, f.Port, f.HealthzBindAddress = c.Address, int32(c.Port), c.HealthzAddress
	f.ReadOnlyPort = int32(c.ReadOnlyPort)
	f.HealthzPort = new(int32(max(c.HealthzPort, 0)))
	f.EnableServer, f.RegisterNode = new(!c.NoServer), new(!c.NoRegister)
	f.RegisterWithTaints = slices.Clone(c.Taints)
	f.ResolverConfig = new(c.ResolvConf)
	f.CgroupRoot, f.CgroupsPerQOS = c.Layout.CgroupRoot, new(!c.NoCgroups)
	f.MaxPods, f.PodsPerCore = int32(c.MaxPods), int32(c.PodsPerCore)
	f.PodPidsLimit = new(c.PodPidsLimit)
	if c.PodPidsLimit <= 0 {
		f.PodPidsLimit = new(int64(-1))
	}
	f.ContainerLogMaxSize = resource.NewQuantity(c.LogMaxSize, resource.BinarySI).String()
	f.ContainerLogMaxFiles = new(int32(c.LogMaxFiles))
	f.ContainerLogMonitorInterval = new(seconds(c.LogInterval))
	f.ImageGCHighThresholdPercent, f.ImageGCLowThresholdPercent = new(int32(c.ImageGCHigh)), new(int32(c.ImageGCLow))
	f.ImageMinimumGCAge, f.ImageMaximumGCAge = seconds(c.ImageMinAge), seconds(c.ImageMaxAge)
	f.SerializeImagePulls = new(c.ParallelPulls == 1)
	if c.ParallelPulls > 0 {
		f.MaxParallelImagePulls = new(int32(c.ParallelPulls))
	}
	f.NodeStatusUpdateFrequency, f.NodeStatusReportFrequency = seconds(c.NodeUpdate), seconds(c.NodeReport)
	f.NodeLeaseDurationSeconds, f.NodeStatusMaxImages = int32(c.LeaseDuration/time.Second), c.MaxImages
	f.SeccompDefault, f.CPUCFSQuota = new(c.SeccompDefault), new(!c.CPUCFSQuotaOff)
	f.CPUCFSQuotaPeriod = new(seconds(c.CPUCFSQuotaPeriod))
	f.AllowedUnsafeSysctls = slices.Clone(c.AllowedUnsafeSysctls)
	f.EvictionHard, f.EvictionSoft = maps.Clone(c.Eviction.Hard), maps.Clone(c.Eviction.Soft)
	f.EvictionSoftGracePeriod, f.EvictionMinimumReclaim = maps.Clone(c.Eviction.SoftGrace), maps.Clone(c.Eviction.MinimumReclaim)
	f.EvictionPressureTransitionPeriod, f.EvictionMaxPodGracePeriod = seconds(c.EvictionTransition), int32(c.EvictionMaxGrace)
	f.LocalStorageCapacityIsolation = new(!c.NoStorageLimits)
	f.EnforceNodeAllocatable = slices.Clone(c.Enforce)
	f.KubeReserved, f.SystemReserved = texts(c.KubeReserved), texts(c.SystemReserved)
	f.KubeletCgroups = c.OwnCgroup
	if c.OOMScore != nil {
		f.OOMScoreAdj = new(int32(*c.OOMScore))
	}
	f.CrashLoopBackOff.MaxContainerRestartPeriod = new(seconds(c.CrashMax))
	f.CPUManagerPolicy = "none"
	if c.StaticCPUs {
		f.CPUManagerPolicy = "static"
	}
	f.MemoryManagerPolicy = kubeletv1beta1.NoneMemoryManagerPolicy
	if c.StaticMemory {
		f.MemoryManagerPolicy = kubeletv1beta1.StaticMemoryManagerPolicy
	}
	f.TopologyManagerPolicy, f.TopologyManagerScope, f.TopologyManagerPolicyOptions = c.Topology.Policy, c.Topology.Scope, maps.Clone(c.Topology.Options)
	f.ImagePullCredentialsVerificationPolicy, f.PreloadedImagesVerificationAllowlist = c.Verification, slices.Clone(c.Allowlist)
	f.StaticPodURL, f.HTTPCheckFrequency, f.FeatureGates = c.StaticPodURL, seconds(c.HTTPCheck), maps.Clone(c.Gates)
	f.RegistryPullQPS, f.RegistryBurst, f.EventRecordQPS, f.EventBurst = c.PullQPS, int32(c.PullBurst), c.EventQPS, int32(c.EventBurst)
	f.Authentication.Webhook.Enabled, f.Authentication.Webhook.CacheTTL = new(!c.NoTokens), seconds(c.TokenTTL)
	f.Authorization.Webhook.CacheAuthorizedTTL, f.Authorization.Webhook.CacheUnauthorizedTTL = seconds(c.AllowTTL), seconds(c.DenyTTL)
	f.RuntimeRequestTimeout = seconds(c.RuntimeTimeout)
	f.StreamingConnectionIdleTimeout, f.EnableContentionProfiling = seconds(c.StreamIdle), c.ContentionProfile
	f.FailSwapOn, f.FailCgroupV1 = new(c.FailSwapOn), new(c.FailCgroupV1)
	f.EnableDebuggingHandlers, f.EnableProfilingHandler, f.EnableSystemLogHandler = new(!c.NoDebug), new(!c.NoProfiling && !c.NoDebug), new(!c.NoNodeLogs)
	f.EnableSystemLogQuery = new(c.NodeLogQuery)
	f.Authentication.Anonymous.Enabled = new(c.Anonymous)
	f.Authorization.Mode = kubeletv1beta1.KubeletAuthorizationModeWebhook
	if c.AlwaysAllow {
		f.Authorization.Mode = kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow
	}
}

func texts(l v1.ResourceList) map[string]string {
	if len(l) == 0 {
		return nil
	}
	out := map[string]string{}
	for name, q := range l {
		out[string(name)] = q.String()
	}
	return out
}

// defaults fills what is neither set nor of Config's: upstream's defaults.
func defaults(f *kubeletv1beta1.KubeletConfiguration) {
	text := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	period := func(p *metav1.Duration, v time.Duration) {
		if p.Duration == 0 {
			p.Duration = v
		}
	}
	number := func(p **int32, v int32) {
		if *p == nil {
			*p = &v
		}
	}
	yes := func(p **bool, v bool) {
		if *p == nil {
			*p = &v
		}
	}
	period(&f.SyncFrequency, time.Minute)
	period(&f.FileCheckFrequency, 20*time.Second)
	period(&f.HTTPCheckFrequency, 20*time.Second)
	period(&f.StreamingConnectionIdleTimeout, 4*time.Hour)
	period(&f.VolumeStatsAggPeriod, time.Minute)
	period(&f.CPUManagerReconcilePeriod, 10*time.Second)
	period(&f.Authentication.Webhook.CacheTTL, 2*time.Minute)
	period(&f.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	period(&f.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	text(&f.Address, "0.0.0.0")
	text(&f.CgroupDriver, "cgroupfs")
	text(&f.CPUManagerPolicy, "none")
	if f.MemoryReservationPolicy == "" {
		f.MemoryReservationPolicy = kubeletv1beta1.NoneMemoryReservationPolicy
	}
	text(&f.MemoryManagerPolicy, kubeletv1beta1.NoneMemoryManagerPolicy)
	text(&f.TopologyManagerPolicy, kubeletv1beta1.NoneTopologyManagerPolicy)
	text(&f.TopologyManagerScope, kubeletv1beta1.ContainerTopologyManagerScope)
	text(&f.HairpinMode, kubeletv1beta1.PromiscuousBridge)
	text(&f.ContentType, "application/vnd.kubernetes.protobuf")
	text(&f.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
	text(&f.MemorySwap.SwapBehavior, "NoSwap")
	number(&f.RegistryPullQPS, 5)
	number(&f.EventRecordQPS, 50)
	number(&f.KubeAPIQPS, 50)
	number(&f.IPTablesMasqueradeBit, 14)
	number(&f.IPTablesDropBit, 15)
	number(&f.ContainerLogMaxWorkers, 1)
	number(&f.OOMScoreAdj, usualOOMScore)
	yes(&f.Authentication.Webhook.Enabled, true)
	yes(&f.EnableControllerAttachDetach, true)
	yes(&f.MakeIPTablesUtilChains, true)
	yes(&f.EnableDebugFlagsHandler, true)
	yes(&f.MergeDefaultEvictionSettings, false)
	for p, v := range map[*int32]int32{&f.RegistryBurst: 10, &f.EventBurst: 100, &f.KubeAPIBurst: 100} {
		if *p == 0 {
			*p = v
		}
	}
	if f.MaxOpenFiles == 0 {
		f.MaxOpenFiles = 1000000
	}
	if f.ConfigMapAndSecretChangeDetectionStrategy == "" {
		f.ConfigMapAndSecretChangeDetectionStrategy = kubeletv1beta1.WatchChangeDetectionStrategy
	}
	if f.Logging.Format == "" {
		f.Logging.Format = "text"
	}
	if f.Logging.FlushFrequency.Duration.Duration == 0 {
		f.Logging.FlushFrequency.Duration.Duration, f.Logging.FlushFrequency.SerializeAsString = 5*time.Second, true
	}
}
