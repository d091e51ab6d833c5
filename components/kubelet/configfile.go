package kubelet

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/base/featuregates"
	"hyperkube/internal/credentials/pki"
)

// decodeFile decodes a KubeletConfiguration in YAML or JSON. Unknown fields are an error.
func decodeFile(raw []byte) (*kubeletv1beta1.KubeletConfiguration, error) {
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal(raw, &meta); err != nil {
		return nil, fmt.Errorf("decoding kubelet configuration: %w", err)
	}
	if meta.Kind != "KubeletConfiguration" || meta.APIVersion != kubeletv1beta1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("decoding kubelet configuration: want a KubeletConfiguration of %s, got %q of %q",
			kubeletv1beta1.SchemeGroupVersion, meta.Kind, meta.APIVersion)
	}
	var out kubeletv1beta1.KubeletConfiguration
	if err := yaml.UnmarshalStrict(raw, &out); err != nil {
		return nil, fmt.Errorf("decoding kubelet configuration: %w", err)
	}
	return &out, nil
}

// Apply applies the fields that f sets to c and leaves the others unchanged. It reads the
// certificates that f refers to.
func (c *Config) Apply(f *kubeletv1beta1.KubeletConfiguration) error {
	c.applyPaths(f)
	c.StaticPods.apply(f)
	c.Containers.apply(f)
	c.DNS.apply(f)
	c.Images.apply(f)
	c.Eviction.apply(f)
	c.Events.apply(f)
	c.File = f
	return errors.Join(c.Logs.apply(f), c.applyReserved(f), c.applyCPUs(f), c.applyMemory(f), c.applyShutdown(f), c.applyNode(f), c.applyServer(f),
		rejectUnsupported(f), checkFile(f), c.applyAccess(f))
}

// override assigns from to *to, unless from is the zero value.
func override[T comparable](to *T, from T) {
	var nothing T
	if from != nothing {
		*to = from
	}
}

// overridePtr assigns *from to *to, unless from is nil. It is for fields whose zero value is valid.
func overridePtr[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// overrideNumber is takeAny for numbers of different widths.
func overrideNumber[T, F ~int | ~int32 | ~int64](to *T, from *F) {
	if from != nil {
		*to = T(*from)
	}
}

// overrideInverted is takeAny with the inverse value.
func overrideInverted(to, from *bool) {
	if from != nil {
		*to = !*from
	}
}

// applyPaths applies paths, endpoints, addresses and ports.
func (c *Config) applyPaths(f *kubeletv1beta1.KubeletConfiguration) {
	override(&c.Layout.PodLogs, f.PodLogsDir)
	override(&c.Layout.CgroupRoot, f.CgroupRoot)
	override(&c.Endpoint, f.ContainerRuntimeEndpoint)
	override(&c.RuntimeTimeout, f.RuntimeRequestTimeout.Duration)
	override(&c.Server.Address, f.Address)
	override(&c.Server.Port, int(f.Port))
	c.Server.ReadOnlyPort = int(f.ReadOnlyPort)
	if f.HealthzPort != nil {
		if c.Server.HealthzPort = int(*f.HealthzPort); c.Server.HealthzPort == 0 {
			c.Server.HealthzPort = -1
		}
	}
	overrideInverted(&c.Server.Off, f.EnableServer)
	overrideInverted(&c.Node.NoRegister, f.RegisterNode)
	if len(f.RegisterWithTaints) > 0 {
		c.Node.Taints = f.RegisterWithTaints
	}
	override(&c.Node.ProviderID, f.ProviderID)
	override(&c.Node.PodCIDR, f.PodCIDR)
	override(&c.Node.MaxPods, int64(f.MaxPods))
	override(&c.Node.Report, f.NodeStatusReportFrequency.Duration)
	override(&c.Node.Lease, time.Duration(f.NodeLeaseDurationSeconds)*time.Second)
	overrideInverted(&c.Cgroups.Off, f.CgroupsPerQOS)
	if len(f.FeatureGates) > 0 {
		c.Gates = featuregates.Set(maps.Clone(f.FeatureGates))
	}
	if f.Tracing != nil {
		c.Tracing = f.Tracing.DeepCopy()
	}
}

func (c *StaticPodConfig) apply(f *kubeletv1beta1.KubeletConfiguration) {
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

func (c *ContainerConfig) apply(f *kubeletv1beta1.KubeletConfiguration) {
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

func (c *DNSConfig) apply(f *kubeletv1beta1.KubeletConfiguration) {
	override(&c.Domain, f.ClusterDomain)
	if len(f.ClusterDNS) > 0 {
		c.Servers = f.ClusterDNS
	}
	if f.ResolverConfig != nil {
		c.ResolvConf, c.NoResolvConf = *f.ResolverConfig, *f.ResolverConfig == ""
	}
}

func (c *ImageConfig) apply(f *kubeletv1beta1.KubeletConfiguration) {
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

func (c *EvictionConfig) apply(f *kubeletv1beta1.KubeletConfiguration) {
	if f.EvictionHard != nil {
		c.Settings.Hard = maps.Clone(f.EvictionHard)
		if ptr.Deref(f.MergeDefaultEvictionSettings, false) {
			c.Settings.Hard = defaultEvictionHard()
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

func (c *EventConfig) apply(f *kubeletv1beta1.KubeletConfiguration) {
	if f.EventRecordQPS != nil {
		c.QPS = new(*f.EventRecordQPS)
	}
	override(&c.Burst, int(f.EventBurst))
}

func (c *LogConfig) apply(f *kubeletv1beta1.KubeletConfiguration) error {
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

// applyAccess applies authentication, authorization and the server's certificate.
func (c *Config) applyAccess(f *kubeletv1beta1.KubeletConfiguration) error {
	var errs []error
	overridePtr(&c.Access.Anonymous, f.Authentication.Anonymous.Enabled)
	overrideInverted(&c.Access.NoTokens, f.Authentication.Webhook.Enabled)
	override(&c.Access.TokenTTL, f.Authentication.Webhook.CacheTTL.Duration)
	override(&c.Access.AllowTTL, f.Authorization.Webhook.CacheAuthorizedTTL.Duration)
	override(&c.Access.DenyTTL, f.Authorization.Webhook.CacheUnauthorizedTTL.Duration)
	switch f.Authorization.Mode {
	case "", kubeletv1beta1.KubeletAuthorizationModeWebhook:
	case kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow:
		c.Access.AlwaysAllow = true
	default:
		errs = append(errs, fmt.Errorf("authorization mode %q: want Webhook or AlwaysAllow", f.Authorization.Mode))
	}
	if path := f.Authentication.X509.ClientCAFile; path != "" {
		pool, err := ReadPool(path)
		errs = append(errs, err)
		c.Access.ClientCA = pool
	}
	if f.TLSCertFile != "" || f.TLSPrivateKeyFile != "" {
		c.Server.Certificate = CertificateFiles(f.TLSCertFile, f.TLSPrivateKeyFile)
		_, err := c.Server.Certificate()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ReadPool reads the PEM certificates of client certificate authorities, for AccessConfig.ClientCA.
func ReadPool(path string) (*x509.CertPool, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading client CA file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("reading client CA file: no certificate in %s", path)
	}
	return pool, nil
}

// CertificateFiles returns a function, for ServerConfig.Certificate, that reloads the certificate
// when its files have changed. The function is safe for concurrent use.
func CertificateFiles(cert, key string) func() (*tls.Certificate, error) {
	return (&pki.Files{Context: "reading the kubelet's certificate", CertFile: cert, KeyFile: key}).Certificate
}

// ParseTaints parses taints of the form "key=value:effect".
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
