package config

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
// c. Complete need not have been called.
func (c *Config) Effective() *kubeletv1beta1.KubeletConfiguration {
	f := &kubeletv1beta1.KubeletConfiguration{}
	if c.File != nil {
		f = c.File.DeepCopy()
	}
	complete := *c
	complete.setDefaults()
	f.Kind, f.APIVersion = "KubeletConfiguration", kubeletv1beta1.SchemeGroupVersion.String()
	complete.setEffective(f)
	setFileDefaults(f)
	return f
}

// EffectiveText returns the configuration in force as YAML for the log. The values of staticPodURLHeader,
// which can be secret, are masked.
func (c *Config) EffectiveText() (string, error) {
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

// setEffective sets the fields of f whose values c determines. c must be complete.
func (c *Config) setEffective(f *kubeletv1beta1.KubeletConfiguration) {
	seconds := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	f.StaticPodPath, f.PodLogsDir, f.ContainerRuntimeEndpoint = c.StaticPods.Dir, c.Layout.PodLogs, "unix://"+strings.TrimPrefix(c.Runtime.Endpoint, "unix://")
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
	f.OOMScoreAdj = new(int32(*c.Machine.OOMScore))
	f.CrashLoopBackOff.MaxContainerRestartPeriod = new(seconds(c.Containers.CrashMax))
	f.CPUManagerPolicy = "none"
	if c.Resources.CPUs.Static {
		f.CPUManagerPolicy = "static"
	}
	f.MemoryManagerPolicy = kubeletv1beta1.NoneMemoryManagerPolicy
	if c.Resources.Memory.Static {
		f.MemoryManagerPolicy = kubeletv1beta1.StaticMemoryManagerPolicy
	}
	f.TopologyManagerPolicy, f.TopologyManagerScope, f.TopologyManagerPolicyOptions = c.Resources.Topology.Policy, c.Resources.Topology.Scope, maps.Clone(c.Resources.Topology.Options)
	f.ImagePullCredentialsVerificationPolicy, f.PreloadedImagesVerificationAllowlist = c.Images.Verification, slices.Clone(c.Images.Allowlist)
	f.StaticPodURL, f.HTTPCheckFrequency, f.FeatureGates = c.StaticPods.URL, seconds(c.StaticPods.Check), maps.Clone(c.Gates)
	f.RegistryPullQPS, f.RegistryBurst, f.EventRecordQPS, f.EventBurst = c.Images.PullQPS, int32(c.Images.PullBurst), c.Events.QPS, int32(c.Events.Burst)
	f.Authentication.Webhook.Enabled, f.Authentication.Webhook.CacheTTL = new(!c.Access.NoTokens), seconds(c.Access.TokenTTL)
	f.Authorization.Webhook.CacheAuthorizedTTL, f.Authorization.Webhook.CacheUnauthorizedTTL = seconds(c.Access.AllowTTL), seconds(c.Access.DenyTTL)
	f.RuntimeRequestTimeout = seconds(c.Runtime.Timeout)
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

// texts formats the quantities of a resource list, or returns nil if it is empty.
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
