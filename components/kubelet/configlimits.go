package kubelet

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"hyperkube/components/kubelet/pod/images"
)

// supportedFeatureGates are the feature gates that the kubelet supports.
var supportedFeatureGates = []string{gateShutdown, gateShutdownByPriority, gateMemoryQoS, gateNoQuota, gatePulledImages, gateCPUBeta, gateQuotaPeriod, gatePodsAPI}

const (
	gateShutdown           = "GracefulNodeShutdown"
	gateShutdownByPriority = "GracefulNodeShutdownBasedOnPodPriority"
	gateMemoryQoS          = "MemoryQoS"
	gateNoQuota            = "DisableCPUQuotaWithExclusiveCPUs"
	gatePulledImages       = "KubeletEnsureSecretPulledImages"
	gateCPUBeta            = "CPUManagerPolicyBetaOptions"
	gateQuotaPeriod        = "CustomCPUCFSQuotaPeriod"
	gatePodsAPI            = "PodsAPI"
)

// defaultCPUQuotaPeriod is the kernel's default, which applies without the feature gate.
const defaultCPUQuotaPeriod = 100 * time.Millisecond

func (c *Config) validateLimits() error {
	errs := []error{c.Gates.Check(supportedFeatureGates...), images.ParseVerification(c.Images.Verification, c.Images.Allowlist), validateAllowedSysctls(c.Containers.AllowedUnsafeSysctls)}
	if (c.Images.CredentialProviders == "") != (c.Images.CredentialProviderDir == "") {
		errs = append(errs, errors.New("--image-credential-provider-config and --image-credential-provider-bin-dir must be set together"))
	}
	if c.Images.Verification != kubeletv1beta1.NeverVerifyPreloadedImages && !c.Gates.Enabled(gatePulledImages, true) {
		errs = append(errs, errors.New("imagePullCredentialsVerificationPolicy requires the feature gate KubeletEnsureSecretPulledImages"))
	}
	if c.StaticPods.URL != "" {
		if u, err := url.Parse(c.StaticPods.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			errs = append(errs, fmt.Errorf("staticPodURL %q: want http or https", c.StaticPods.URL))
		}
	}
	for name, n := range map[string]int{
		"registryPullQPS": int(*c.Images.PullQPS), "registryBurst": c.Images.PullBurst, "eventRecordQPS": int(*c.Events.QPS), "eventBurst": c.Events.Burst,
	} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("%s must not be a negative number", name))
		}
	}
	if c.Images.MaxAge != 0 && c.Images.MaxAge <= c.Images.MinAge {
		errs = append(errs, fmt.Errorf("imageMaximumGCAge %v must be greater than imageMinimumGCAge %v", c.Images.MaxAge, c.Images.MinAge))
	}
	if p := c.Containers.CPUQuotaPeriod; p != defaultCPUQuotaPeriod && !c.Gates.Enabled(gateQuotaPeriod, true) {
		errs = append(errs, fmt.Errorf("cpuCFSQuotaPeriod (--cpu-cfs-quota-period) %v requires feature gate CustomCPUCFSQuotaPeriod", p))
	} else if p < time.Millisecond || p > time.Second {
		errs = append(errs, fmt.Errorf("cpuCFSQuotaPeriod %v must be between 1ms and 1sec, inclusive", p))
	}
	switch name := c.Cgroups.System; {
	case name != "" && c.Layout.CgroupRoot == "":
		errs = append(errs, errors.New("systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified"))
	case name != "" && path.Clean("/"+name) == "/":
		errs = append(errs, errors.New(`systemCgroups (--system-cgroups): system container cannot be root ("/")`))
	}
	if c.RuntimeTimeout < 0 {
		errs = append(errs, fmt.Errorf("runtimeRequestTimeout %v must be positive", c.RuntimeTimeout))
	}
	if c.Logs.Interval < 3*time.Second {
		errs = append(errs, fmt.Errorf("containerLogMonitorInterval %v must be at least 3 seconds", c.Logs.Interval))
	}
	if n := *c.Node.MaxImages; n < -1 {
		errs = append(errs, fmt.Errorf("nodeStatusMaxImages (--node-status-max-images) %d must be -1 or greater", n))
	}
	if c.Images.Endpoint != "" && !filepath.IsAbs(strings.TrimPrefix(c.Images.Endpoint, "unix://")) {
		errs = append(errs, fmt.Errorf("imageServiceEndpoint %q: want unix:// and an absolute path", c.Images.Endpoint))
	}
	if f := c.Containers.MemoryThrottling; f != nil {
		if *f <= 0 || *f > 1 {
			errs = append(errs, fmt.Errorf("memoryThrottlingFactor %v must be greater than 0 and less than or equal to 1.0", *f))
		}
		// 0.9 is accepted because it was the default in earlier versions.
		if *f != 0.9 && !c.Gates.Enabled(gateMemoryQoS, true) {
			errs = append(errs, errors.New("memoryThrottlingFactor must not be set when MemoryQoS feature gate is disabled"))
		}
	}
	if c.Containers.TieredMemory && !c.Gates.Enabled(gateMemoryQoS, true) {
		errs = append(errs, fmt.Errorf("memoryReservationPolicy %q requires MemoryQoS feature gate to be enabled", kubeletv1beta1.TieredReservationMemoryReservationPolicy))
	}
	if len(c.Machine.Shutdown) > 0 && !c.Gates.Enabled(gateShutdown, true) {
		errs = append(errs, errors.New("shutdownGracePeriod requires the feature gate GracefulNodeShutdown"))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Containers.Sysctls)) {
		if !namespaced(name) {
			errs = append(errs, fmt.Errorf("defaultPodSysctls: %q is not namespaced", name))
		}
	}
	return errors.Join(errs...)
}

// namespaced reports whether a sysctl is namespaced, so that each pod can have its own value.
func namespaced(name string) bool {
	name = strings.ReplaceAll(name, "/", ".")
	return name == "kernel.sem" || name == "kernel.domainname" ||
		slices.ContainsFunc([]string{"kernel.shm", "kernel.msg", "fs.mqueue.", "net.", "user."}, func(p string) bool { return strings.HasPrefix(name, p) })
}

// rejectUnsupported returns an error for each setting that is not supported and has an effect
// upstream. Fields that are neither rejected here nor read have no effect, because this kubelet
// reacts to events where upstream polls, or leaves the task to the runtime; docs/node-configuration.md lists
// them.
func rejectUnsupported(f *kubeletv1beta1.KubeletConfiguration) error {
	var errs []error
	no := func(asked bool, field string) {
		if asked {
			errs = append(errs, fmt.Errorf("%s is not supported", field))
		}
	}
	unset := func(b *bool) bool { return b != nil && !*b }
	if ptr.Deref(f.EnableSystemLogQuery, false) && unset(f.EnableSystemLogHandler) {
		errs = append(errs, errors.New("enableSystemLogHandler is required for enableSystemLogQuery"))
	}
	if f.ReadOnlyPort < 0 || f.ReadOnlyPort > 65535 {
		errs = append(errs, fmt.Errorf("readOnlyPort (--read-only-port) %d must be between 0 and 65535, inclusive", f.ReadOnlyPort))
	}
	if f.RunOnce {
		errs = append(errs, errors.New("runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set"))
	}
	no(len(f.QOSReserved) > 0, "qosReserved")
	no(unset(f.EnableControllerAttachDetach), "enableControllerAttachDetach: false")
	for _, err := range tracingapi.ValidateTracingConfiguration(f.Tracing, nil, field.NewPath("tracing")) {
		errs = append(errs, err)
	}
	if p := f.MemoryReservationPolicy; p != "" && p != kubeletv1beta1.NoneMemoryReservationPolicy && p != kubeletv1beta1.TieredReservationMemoryReservationPolicy {
		errs = append(errs, fmt.Errorf("option %q specified for memoryReservationPolicy. Valid options are %q or %q", p, kubeletv1beta1.NoneMemoryReservationPolicy, kubeletv1beta1.TieredReservationMemoryReservationPolicy))
	}
	no(f.UserNamespaces != nil && f.UserNamespaces.IDsPerPod != nil && *f.UserNamespaces.IDsPerPod != 65536, "userNamespaces.idsPerPod other than 65536")
	if d := f.CgroupDriver; d != "" && d != "cgroupfs" && d != "systemd" {
		errs = append(errs, fmt.Errorf("cgroupDriver %q: want cgroupfs or systemd", d))
	}
	if s := f.ConfigMapAndSecretChangeDetectionStrategy; s != "" && s != kubeletv1beta1.WatchChangeDetectionStrategy &&
		s != kubeletv1beta1.TTLCacheChangeDetectionStrategy && s != kubeletv1beta1.GetChangeDetectionStrategy {
		errs = append(errs, fmt.Errorf("configMapAndSecretChangeDetectionStrategy %q: want Watch, Cache or Get", s))
	}
	if m := f.HairpinMode; m != "" && m != kubeletv1beta1.HairpinNone && m != kubeletv1beta1.HairpinVeth && m != kubeletv1beta1.PromiscuousBridge {
		errs = append(errs, fmt.Errorf("hairpinMode %q: want none, hairpin-veth or promiscuous-bridge", m))
	}
	if l := f.Logging.Format; l != "" && l != "text" && l != "json" {
		errs = append(errs, fmt.Errorf("logging.format %q: want text or json", l))
	}
	if n := f.ContainerLogMaxWorkers; n != nil && *n < 1 {
		errs = append(errs, errors.New("containerLogMaxWorkers must be greater than or equal to 1"))
	}
	return errors.Join(errs...)
}
