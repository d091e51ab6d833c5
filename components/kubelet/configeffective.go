package kubelet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// Effective returns the configuration in force as a KubeletConfiguration: the values of the file,
// values from other sources, and upstream's defaults for the rest. The result shares no memory with
// c. c need not have been completed by New.
func (c *Config) Effective() *kubeletv1beta1.KubeletConfiguration {
	f := &kubeletv1beta1.KubeletConfiguration{}
	if c.File != nil {
		f = c.File.DeepCopy()
	}
	f.Kind, f.APIVersion = "KubeletConfiguration", kubeletv1beta1.SchemeGroupVersion.String()
	c.setEffective(f)
	setDefaults(f)
	return f
}

// effectiveText returns the configuration in force as YAML for the log. Values of
// staticPodURLHeader can be secret and are masked.
func (c *Config) effectiveText() (string, error) {
	f := c.Effective()
	for name := range f.StaticPodURLHeader {
		f.StaticPodURLHeader[name] = []string{"<masked>"}
	}
	text, err := yaml.Marshal(f)
	if err != nil {
		return "", fmt.Errorf("encoding the effective configuration: %w", err)
	}
	return string(text), nil
}

// setEffective sets the fields of f that c determines.
func (c *Config) setEffective(f *kubeletv1beta1.KubeletConfiguration) {
	seconds := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	f.StaticPodPath, f.PodLogsDir, f.ContainerRuntimeEndpoint = c.StaticPods.Dir, c.Layout.PodLogs, "unix://"+strings.TrimPrefix(c.Endpoint, "unix://")
	f.Tracing = c.Tracing.DeepCopy()
	f.ClusterDNS, f.ClusterDomain, f.PodCIDR, f.ProviderID = slices.Clone(c.DNS.Servers), c.DNS.Domain, c.Node.PodCIDR, c.Node.ProviderID
	f.Address, f.Port, f.HealthzBindAddress = c.Server.Address, int32(c.Server.Port), c.Server.HealthzAddress
	f.ReadOnlyPort = int32(c.Server.ReadOnlyPort)
	f.HealthzPort = new(int32(max(c.Server.HealthzPort, 0)))
	f.EnableServer, f.RegisterNode = new(!c.Server.Off), new(!c.Node.NoRegister)
	f.RegisterWithTaints = slices.Clone(c.Node.Taints)
	f.ResolverConfig = new(c.DNS.ResolvConf)
	f.CgroupRoot, f.CgroupsPerQOS = c.Layout.CgroupRoot, new(!c.Cgroups.Off)
	f.MaxPods, f.PodsPerCore = int32(c.Node.MaxPods), int32(c.Node.PodsPerCore)
	f.PodPidsLimit = new(c.Containers.PidsLimit)
	if c.Containers.PidsLimit <= 0 {
		f.PodPidsLimit = new(int64(-1))
	}
	f.ContainerLogMaxSize = resource.NewQuantity(c.Logs.MaxSize, resource.BinarySI).String()
	f.ContainerLogMaxFiles = new(int32(c.Logs.MaxFiles))
	f.ContainerLogMonitorInterval = new(seconds(c.Logs.Interval))
	f.ImageGCHighThresholdPercent, f.ImageGCLowThresholdPercent = new(int32(c.Images.GCHigh)), new(int32(c.Images.GCLow))
	f.ImageMinimumGCAge, f.ImageMaximumGCAge = seconds(c.Images.MinAge), seconds(c.Images.MaxAge)
	f.SerializeImagePulls = new(c.Images.ParallelPulls == 1)
	if c.Images.ParallelPulls > 0 {
		f.MaxParallelImagePulls = new(int32(c.Images.ParallelPulls))
	}
	f.NodeStatusUpdateFrequency, f.NodeStatusReportFrequency = seconds(c.Node.Update), seconds(c.Node.Report)
	f.NodeLeaseDurationSeconds, f.NodeStatusMaxImages = int32(c.Node.Lease/time.Second), c.Node.MaxImages
	f.SeccompDefault, f.CPUCFSQuota = new(c.Containers.SeccompDefault), new(!c.Containers.NoCPUQuota)
	f.CPUCFSQuotaPeriod = new(seconds(c.Containers.CPUQuotaPeriod))
	f.AllowedUnsafeSysctls = slices.Clone(c.Containers.AllowedUnsafeSysctls)
	f.EvictionHard, f.EvictionSoft = maps.Clone(c.Eviction.Settings.Hard), maps.Clone(c.Eviction.Settings.Soft)
	f.EvictionSoftGracePeriod, f.EvictionMinimumReclaim = maps.Clone(c.Eviction.Settings.SoftGrace), maps.Clone(c.Eviction.Settings.MinimumReclaim)
	f.EvictionPressureTransitionPeriod, f.EvictionMaxPodGracePeriod = seconds(c.Eviction.Transition), int32(c.Eviction.MaxGrace)
	f.LocalStorageCapacityIsolation = new(!c.Eviction.NoStorageLimits)
	f.EnforceNodeAllocatable = slices.Clone(c.Reserved.Enforce)
	f.KubeReserved, f.SystemReserved = texts(c.Reserved.Kube), texts(c.Reserved.System)
	f.KubeletCgroups, f.SystemCgroups = c.Cgroups.Kubelet, c.Cgroups.System
	if c.Machine.OOMScore != nil {
		f.OOMScoreAdj = new(int32(*c.Machine.OOMScore))
	}
	f.CrashLoopBackOff.MaxContainerRestartPeriod = new(seconds(c.Containers.CrashMax))
	f.CPUManagerPolicy = "none"
	if c.CPUs.Static {
		f.CPUManagerPolicy = "static"
	}
	f.MemoryManagerPolicy = kubeletv1beta1.NoneMemoryManagerPolicy
	if c.Memory.Static {
		f.MemoryManagerPolicy = kubeletv1beta1.StaticMemoryManagerPolicy
	}
	f.TopologyManagerPolicy, f.TopologyManagerScope, f.TopologyManagerPolicyOptions = c.Topology.Policy, c.Topology.Scope, maps.Clone(c.Topology.Options)
	f.ImagePullCredentialsVerificationPolicy, f.PreloadedImagesVerificationAllowlist = c.Images.Verification, slices.Clone(c.Images.Allowlist)
	f.StaticPodURL, f.HTTPCheckFrequency, f.FeatureGates = c.StaticPods.URL, seconds(c.StaticPods.Check), maps.Clone(c.Gates)
	f.RegistryPullQPS, f.RegistryBurst, f.EventRecordQPS, f.EventBurst = c.Images.PullQPS, int32(c.Images.PullBurst), c.Events.QPS, int32(c.Events.Burst)
	f.Authentication.Webhook.Enabled, f.Authentication.Webhook.CacheTTL = new(!c.Access.NoTokens), seconds(c.Access.TokenTTL)
	f.Authorization.Webhook.CacheAuthorizedTTL, f.Authorization.Webhook.CacheUnauthorizedTTL = seconds(c.Access.AllowTTL), seconds(c.Access.DenyTTL)
	f.RuntimeRequestTimeout = seconds(c.RuntimeTimeout)
	f.StreamingConnectionIdleTimeout, f.EnableContentionProfiling = seconds(c.Server.StreamIdle), c.Server.ContentionProfile
	f.FailSwapOn, f.FailCgroupV1 = new(c.Machine.FailSwapOn), new(c.Machine.FailCgroupV1)
	f.EnableDebuggingHandlers, f.EnableProfilingHandler, f.EnableSystemLogHandler = new(!c.Server.NoDebug), new(!c.Server.NoProfiling && !c.Server.NoDebug), new(!c.Server.NoNodeLogs)
	f.EnableSystemLogQuery = new(c.Server.NodeLogQuery)
	f.Authentication.Anonymous.Enabled = new(c.Access.Anonymous)
	f.Authorization.Mode = kubeletv1beta1.KubeletAuthorizationModeWebhook
	if c.Access.AlwaysAllow {
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

// setDefaults sets upstream's default of each field that is unset and not part of Config.
func setDefaults(f *kubeletv1beta1.KubeletConfiguration) {
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
	number(&f.OOMScoreAdj, defaultOOMScore)
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
