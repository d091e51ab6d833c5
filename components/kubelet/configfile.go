package kubelet

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
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
	var errs []error
	text := func(to *string, from string) {
		if from != "" {
			*to = from
		}
	}
	duration := func(to *time.Duration, from metav1.Duration) {
		if from.Duration != 0 {
			*to = from.Duration
		}
	}
	text(&c.StaticPods, f.StaticPodPath)
	text(&c.Layout.PodLogs, f.PodLogsDir)
	text(&c.Address, f.Address)
	text(&c.ClusterDomain, f.ClusterDomain)
	if f.Tracing != nil {
		c.Tracing = f.Tracing.DeepCopy()
	}
	text(&c.PodCIDR, f.PodCIDR)
	text(&c.ProviderID, f.ProviderID)
	text(&c.Endpoint, f.ContainerRuntimeEndpoint)
	if f.CgroupRoot != "" {
		c.Layout.CgroupRoot = f.CgroupRoot
	}
	if f.Port != 0 {
		c.Port = int(f.Port)
	}
	c.ReadOnlyPort = int(f.ReadOnlyPort)
	if f.HealthzPort != nil {
		if c.HealthzPort = int(*f.HealthzPort); c.HealthzPort == 0 {
			c.HealthzPort = -1
		}
	}
	if f.EnableServer != nil {
		c.NoServer = !*f.EnableServer
	}
	if len(f.ClusterDNS) > 0 {
		c.ClusterDNS = f.ClusterDNS
	}
	if f.ResolverConfig != nil {
		c.ResolvConf, c.NoResolvConf = *f.ResolverConfig, *f.ResolverConfig == ""
	}
	if f.MaxPods != 0 {
		c.MaxPods = int64(f.MaxPods)
	}
	if f.PodPidsLimit != nil {
		c.PodPidsLimit = *f.PodPidsLimit
	}
	if f.RegisterNode != nil {
		c.NoRegister = !*f.RegisterNode
	}
	if len(f.RegisterWithTaints) > 0 {
		c.Taints = f.RegisterWithTaints
	}
	if f.ContainerLogMaxSize != "" {
		q, err := resource.ParseQuantity(f.ContainerLogMaxSize)
		if err != nil {
			errs = append(errs, fmt.Errorf("containerLogMaxSize: %w", err))
		}
		c.LogMaxSize = q.Value()
	}
	if f.ContainerLogMaxFiles != nil {
		c.LogMaxFiles = int(*f.ContainerLogMaxFiles)
	}
	if f.ImageGCHighThresholdPercent != nil {
		c.ImageGCHigh = int(*f.ImageGCHighThresholdPercent)
	}
	if f.ImageGCLowThresholdPercent != nil {
		c.ImageGCLow = int(*f.ImageGCLowThresholdPercent)
	}
	duration(&c.ImageMinAge, f.ImageMinimumGCAge)
	duration(&c.NodeReport, f.NodeStatusReportFrequency)
	if f.NodeLeaseDurationSeconds != 0 {
		c.LeaseDuration = time.Duration(f.NodeLeaseDurationSeconds) * time.Second
	}
	if f.SeccompDefault != nil {
		c.SeccompDefault = *f.SeccompDefault
	}
	if f.CPUCFSQuota != nil {
		c.CPUCFSQuotaOff = !*f.CPUCFSQuota
	}
	if f.CPUCFSQuotaPeriod != nil {
		duration(&c.CPUCFSQuotaPeriod, *f.CPUCFSQuotaPeriod)
	}
	if f.CgroupsPerQOS != nil {
		c.NoCgroups = !*f.CgroupsPerQOS
	}
	if len(f.AllowedUnsafeSysctls) > 0 {
		c.AllowedUnsafeSysctls = f.AllowedUnsafeSysctls
	}
	if f.EvictionHard != nil {
		c.Eviction.Hard = maps.Clone(f.EvictionHard)
		if f.MergeDefaultEvictionSettings != nil && *f.MergeDefaultEvictionSettings {
			c.Eviction.Hard = defaultEvictionHard()
			maps.Copy(c.Eviction.Hard, f.EvictionHard)
		}
	}
	for to, from := range map[*map[string]string]map[string]string{
		&c.Eviction.Soft: f.EvictionSoft, &c.Eviction.SoftGrace: f.EvictionSoftGracePeriod, &c.Eviction.MinimumReclaim: f.EvictionMinimumReclaim,
	} {
		if from != nil {
			*to = maps.Clone(from)
		}
	}
	duration(&c.EvictionTransition, f.EvictionPressureTransitionPeriod)
	if f.EvictionMaxPodGracePeriod != 0 {
		c.EvictionMaxGrace = int64(f.EvictionMaxPodGracePeriod)
	}
	if f.LocalStorageCapacityIsolation != nil {
		c.NoStorageLimits = !*f.LocalStorageCapacityIsolation
	}
	errs = append(errs, c.applyReserved(f), c.applyCPUs(f), c.applyMemory(f), c.applyShutdown(f), c.applyLimits(f), c.applyNode(f), c.applyServer(f), refuseUnsupported(f), checkFile(f))
	if f.CrashLoopBackOff.MaxContainerRestartPeriod != nil {
		duration(&c.CrashMax, *f.CrashLoopBackOff.MaxContainerRestartPeriod)
	}
	duration(&c.ImageMaxAge, f.ImageMaximumGCAge)
	if f.ContainerLogMonitorInterval != nil {
		duration(&c.LogInterval, *f.ContainerLogMonitorInterval)
	}
	if f.Authentication.Anonymous.Enabled != nil {
		c.Anonymous = *f.Authentication.Anonymous.Enabled
	}
	switch f.Authorization.Mode {
	case "", kubeletv1beta1.KubeletAuthorizationModeWebhook:
	case kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow:
		c.AlwaysAllow = true
	default:
		errs = append(errs, fmt.Errorf("authorization mode %q: want Webhook or AlwaysAllow", f.Authorization.Mode))
	}
	if path := f.Authentication.X509.ClientCAFile; path != "" {
		pool, err := ReadPool(path)
		errs = append(errs, err)
		c.ClientCA = pool
	}
	if f.TLSCertFile != "" || f.TLSPrivateKeyFile != "" {
		c.Certificate = CertificateFiles(f.TLSCertFile, f.TLSPrivateKeyFile)
		_, err := c.Certificate()
		errs = append(errs, err)
	}
	c.File = f
	return errors.Join(errs...)
}

// ReadPool reads the authorities of clients, PEM, for Config.ClientCA.
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
	var mu sync.Mutex
	var have *tls.Certificate
	var of time.Time
	return func() (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		info, err := os.Stat(cert)
		if err == nil && have != nil && info.ModTime().Equal(of) {
			return have, nil
		}
		if err == nil {
			var pair tls.Certificate
			if pair, err = tls.LoadX509KeyPair(cert, key); err == nil {
				have, of = &pair, info.ModTime()
				return have, nil
			}
		}
		if have != nil {
			// Between the writing of one file and the other they do not fit.
			return have, nil
		}
		return nil, fmt.Errorf("reading the kubelet's certificate: %w", err)
	}
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
