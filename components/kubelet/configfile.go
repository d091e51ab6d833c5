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

	"hyperkube/internal/featuregates"
	"hyperkube/internal/pki"
)

// decodeFile reads a KubeletConfiguration, YAML or JSON. Fields that do not
// exist are an error.
func decodeFile(raw []byte) (*kubeletv1beta1.KubeletConfiguration, error) {
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal(raw, &meta); err != nil {
		return nil, fmt.Errorf("reading the kubelet's configuration: %w", err)
	}
	if meta.Kind != "KubeletConfiguration" || meta.APIVersion != kubeletv1beta1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("reading the kubelet's configuration: want a KubeletConfiguration of %s, got %q of %q",
			kubeletv1beta1.SchemeGroupVersion, meta.Kind, meta.APIVersion)
	}
	var out kubeletv1beta1.KubeletConfiguration
	if err := yaml.UnmarshalStrict(raw, &out); err != nil {
		return nil, fmt.Errorf("reading the kubelet's configuration: %w", err)
	}
	return &out, nil
}

// Apply puts what the file says into c. What the file does not say is left as
// it is. Certificates that the file names are read.
func (c *Config) Apply(f *kubeletv1beta1.KubeletConfiguration) error {
	c.applyPlaces(f)
	c.StaticPods.apply(f)
	c.Containers.apply(f)
	c.DNS.apply(f)
	c.Images.apply(f)
	c.Eviction.apply(f)
	c.Events.apply(f)
	c.File = f
	return errors.Join(c.Logs.apply(f), c.applyReserved(f), c.applyCPUs(f), c.applyMemory(f), c.applyShutdown(f), c.applyNode(f), c.applyServer(f),
		refuseUnsupported(f), checkFile(f), c.applyAccess(f))
}

// take sets to to what the file says, unless that is the zero value: it says nothing then.
func take[T comparable](to *T, from T) {
	var nothing T
	if from != nothing {
		*to = from
	}
}

// takeAny is take for what may be set to the zero value, and is nil where the file says nothing.
func takeAny[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// takeNumber is takeAny for numbers of another width.
func takeNumber[T, F ~int | ~int32 | ~int64](to *T, from *F) {
	if from != nil {
		*to = T(*from)
	}
}

// takeNot is takeAny for what is off where the file says that it is on.
func takeNot(to, from *bool) {
	if from != nil {
		*to = !*from
	}
}

// applyPlaces takes where things are on the node, and where it is reached.
func (c *Config) applyPlaces(f *kubeletv1beta1.KubeletConfiguration) {
	take(&c.Layout.PodLogs, f.PodLogsDir)
	take(&c.Layout.CgroupRoot, f.CgroupRoot)
	take(&c.Endpoint, f.ContainerRuntimeEndpoint)
	take(&c.RuntimeTimeout, f.RuntimeRequestTimeout.Duration)
	take(&c.Server.Address, f.Address)
	take(&c.Server.Port, int(f.Port))
	c.Server.ReadOnlyPort = int(f.ReadOnlyPort)
	if f.HealthzPort != nil {
		if c.Server.HealthzPort = int(*f.HealthzPort); c.Server.HealthzPort == 0 {
			c.Server.HealthzPort = -1
		}
	}
	takeNot(&c.Server.Off, f.EnableServer)
	takeNot(&c.Node.NoRegister, f.RegisterNode)
	if len(f.RegisterWithTaints) > 0 {
		c.Node.Taints = f.RegisterWithTaints
	}
	take(&c.Node.ProviderID, f.ProviderID)
	take(&c.Node.PodCIDR, f.PodCIDR)
	take(&c.Node.MaxPods, int64(f.MaxPods))
	take(&c.Node.Report, f.NodeStatusReportFrequency.Duration)
	take(&c.Node.Lease, time.Duration(f.NodeLeaseDurationSeconds)*time.Second)
	takeNot(&c.Cgroups.Off, f.CgroupsPerQOS)
	if len(f.FeatureGates) > 0 {
		c.Gates = featuregates.Set(maps.Clone(f.FeatureGates))
	}
	if f.Tracing != nil {
		c.Tracing = f.Tracing.DeepCopy()
	}
}

func (c *StaticPods) apply(f *kubeletv1beta1.KubeletConfiguration) {
	take(&c.Dir, f.StaticPodPath)
	take(&c.URL, f.StaticPodURL)
	if len(f.StaticPodURLHeader) > 0 {
		c.Header = http.Header{}
		for name, values := range f.StaticPodURLHeader {
			for _, v := range values {
				c.Header.Add(name, v)
			}
		}
	}
	take(&c.Check, f.HTTPCheckFrequency.Duration)
}

func (c *ContainerConfig) apply(f *kubeletv1beta1.KubeletConfiguration) {
	takeAny(&c.PidsLimit, f.PodPidsLimit)
	takeAny(&c.SeccompDefault, f.SeccompDefault)
	takeNot(&c.NoCPUQuota, f.CPUCFSQuota)
	if f.CPUCFSQuotaPeriod != nil {
		take(&c.CPUQuotaPeriod, f.CPUCFSQuotaPeriod.Duration)
	}
	if f.DefaultPodSysctls != nil {
		c.Sysctls = maps.Clone(f.DefaultPodSysctls)
	}
	if len(f.AllowedUnsafeSysctls) > 0 {
		c.AllowedUnsafeSysctls = f.AllowedUnsafeSysctls
	}
	takeAny(&c.SingleOOMKill, f.SingleProcessOOMKill)
	if f.MemoryThrottlingFactor != nil {
		c.MemoryThrottling = new(*f.MemoryThrottlingFactor)
	}
	if f.MemoryReservationPolicy != "" {
		c.TieredMemory = f.MemoryReservationPolicy == kubeletv1beta1.TieredReservationMemoryReservationPolicy
	}
	if f.CrashLoopBackOff.MaxContainerRestartPeriod != nil {
		take(&c.CrashMax, f.CrashLoopBackOff.MaxContainerRestartPeriod.Duration)
	}
}

func (c *DNSConfig) apply(f *kubeletv1beta1.KubeletConfiguration) {
	take(&c.Domain, f.ClusterDomain)
	if len(f.ClusterDNS) > 0 {
		c.Servers = f.ClusterDNS
	}
	if f.ResolverConfig != nil {
		c.ResolvConf, c.NoResolvConf = *f.ResolverConfig, *f.ResolverConfig == ""
	}
}

func (c *ImageConfig) apply(f *kubeletv1beta1.KubeletConfiguration) {
	take(&c.Endpoint, f.ImageServiceEndpoint)
	if f.RegistryPullQPS != nil {
		c.PullQPS = new(*f.RegistryPullQPS)
	}
	take(&c.PullBurst, int(f.RegistryBurst))
	take(&c.Verification, f.ImagePullCredentialsVerificationPolicy)
	if f.PreloadedImagesVerificationAllowlist != nil {
		c.Allowlist = slices.Clone(f.PreloadedImagesVerificationAllowlist)
	}
	takeNumber(&c.GCHigh, f.ImageGCHighThresholdPercent)
	takeNumber(&c.GCLow, f.ImageGCLowThresholdPercent)
	take(&c.MinAge, f.ImageMinimumGCAge.Duration)
	take(&c.MaxAge, f.ImageMaximumGCAge.Duration)
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
	take(&c.Transition, f.EvictionPressureTransitionPeriod.Duration)
	take(&c.MaxGrace, int64(f.EvictionMaxPodGracePeriod))
	takeNot(&c.NoStorageLimits, f.LocalStorageCapacityIsolation)
}

func (c *EventConfig) apply(f *kubeletv1beta1.KubeletConfiguration) {
	if f.EventRecordQPS != nil {
		c.QPS = new(*f.EventRecordQPS)
	}
	take(&c.Burst, int(f.EventBurst))
}

func (c *LogConfig) apply(f *kubeletv1beta1.KubeletConfiguration) error {
	takeNumber(&c.MaxFiles, f.ContainerLogMaxFiles)
	if f.ContainerLogMonitorInterval != nil {
		take(&c.Interval, f.ContainerLogMonitorInterval.Duration)
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

// applyAccess takes who may ask the kubelet, and what it shows them.
func (c *Config) applyAccess(f *kubeletv1beta1.KubeletConfiguration) error {
	var errs []error
	takeAny(&c.Access.Anonymous, f.Authentication.Anonymous.Enabled)
	takeNot(&c.Access.NoTokens, f.Authentication.Webhook.Enabled)
	take(&c.Access.TokenTTL, f.Authentication.Webhook.CacheTTL.Duration)
	take(&c.Access.AllowTTL, f.Authorization.Webhook.CacheAuthorizedTTL.Duration)
	take(&c.Access.DenyTTL, f.Authorization.Webhook.CacheUnauthorizedTTL.Duration)
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

// ReadPool reads the authorities of clients, PEM, for AccessConfig.ClientCA.
func ReadPool(path string) (*x509.CertPool, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the clients' CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("reading the clients' CA: no certificate in %s", path)
	}
	return pool, nil
}

// CertificateFiles returns what reads a certificate anew whenever its file has
// changed, for Config.Certificate. It is safe for several goroutines.
func CertificateFiles(cert, key string) func() (*tls.Certificate, error) {
	return (&pki.Files{What: "reading the kubelet's certificate", CertFile: cert, KeyFile: key}).Certificate
}

// ParseTaints reads taints as "key=value:effect".
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
