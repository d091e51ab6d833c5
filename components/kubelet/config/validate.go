package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/node/util/sysctl"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/resources/topology"
)

// validateLimits returns an error for each setting that is out of its range or requires a feature gate that
// is disabled. The defaults must be set.
func (c *Config) validateLimits() error {
	errs := []error{c.Gates.Check(supportedFeatureGates...), images.ParseVerification(c.Images.Verification, c.Images.Allowlist), validateAllowedSysctls(c.Containers.AllowedUnsafeSysctls)}
	if (c.Images.CredentialProviders == "") != (c.Images.CredentialProviderDir == "") {
		errs = append(errs, errors.New("--image-credential-provider-config and --image-credential-provider-bin-dir must be set together"))
	}
	if c.Images.Verification != kubeletv1beta1.NeverVerifyPreloadedImages && !c.Gates.Enabled(GatePulledImages, true) {
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
	if p := c.Containers.CPUQuotaPeriod; p != defaultCPUQuotaPeriod && !c.Gates.Enabled(GateQuotaPeriod, true) {
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
	if c.Runtime.Timeout < 0 {
		errs = append(errs, fmt.Errorf("runtimeRequestTimeout %v must be positive", c.Runtime.Timeout))
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
		if *f != 0.9 && !c.Gates.Enabled(GateMemoryQoS, true) {
			errs = append(errs, errors.New("memoryThrottlingFactor must not be set when MemoryQoS feature gate is disabled"))
		}
	}
	if c.Containers.TieredMemory && !c.Gates.Enabled(GateMemoryQoS, true) {
		errs = append(errs, fmt.Errorf("memoryReservationPolicy %q requires MemoryQoS feature gate to be enabled", kubeletv1beta1.TieredReservationMemoryReservationPolicy))
	}
	if len(c.Machine.Shutdown) > 0 && !c.Gates.Enabled(GateShutdown, true) {
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

// validate returns an error that describes all invalid settings. The defaults must be set. It also parses the
// eviction thresholds.
func (c *Config) validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("a node name is required"))
	} else if list := validation.IsDNS1123Subdomain(c.NodeName); len(list) > 0 {
		errs = append(errs, fmt.Errorf("node name %q: %s", c.NodeName, strings.Join(list, "; ")))
	}
	if !filepath.IsAbs(strings.TrimPrefix(c.Runtime.Endpoint, "unix://")) {
		errs = append(errs, fmt.Errorf("container runtime endpoint %q: must be unix:// and an absolute path", c.Runtime.Endpoint))
	}
	if c.Node.MaxPods < 0 {
		errs = append(errs, errors.New("maxPods must not be negative"))
	}
	if c.Node.PodsPerCore < 0 {
		errs = append(errs, errors.New("podsPerCore must not be negative"))
	}
	if c.Containers.CrashMax < time.Second || c.Containers.CrashMax > podstate.CrashMax {
		errs = append(errs, fmt.Errorf("crashLoopBackOff.maxContainerRestartPeriod must be between 1s and %v", podstate.CrashMax))
	}
	errs = append(errs, c.Reserved.validate(!c.Cgroups.Off), c.validateLimits())
	_, _, err := topology.Check(c.Resources.Topology.Policy, c.Resources.Topology.Scope, c.Resources.Topology.Options)
	errs = append(errs, err)
	for _, p := range []int{c.Server.Port, c.Server.HealthzPort} {
		if p > 65535 {
			errs = append(errs, fmt.Errorf("port %d is out of range", p))
		}
	}
	if c.Logs.MaxFiles < 2 {
		errs = append(errs, errors.New("containerLogMaxFiles must be greater than 1"))
	}
	if c.Images.GCHigh < c.Images.GCLow || c.Images.GCHigh > 100 || c.Images.GCLow < 0 {
		errs = append(errs, errors.New("imageGCHighThresholdPercent must be at least imageGCLowThresholdPercent, both percentages"))
	}
	for _, ip := range c.DNS.Servers {
		if _, err := netip.ParseAddr(ip); err != nil {
			errs = append(errs, fmt.Errorf("cluster DNS: %w", err))
		}
	}
	if c.Eviction.thresholds, err = c.Eviction.Settings.Thresholds(); err != nil {
		errs = append(errs, err)
	}
	for key, value := range c.Node.Labels {
		if list := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(list) > 0 {
			errs = append(errs, fmt.Errorf("node label %s=%s: %s", key, value, strings.Join(list, "; ")))
		}
	}
	return errors.Join(errs...)
}

// validateAllowedSysctls validates allowedUnsafeSysctls: each entry must be a namespaced sysctl, or a prefix
// of namespaced sysctls that ends with "*".
func validateAllowedSysctls(names []string) error {
	var errs []error
	for _, name := range names {
		if len(name) > maxSysctlLength || !sysctlPattern.MatchString(name) {
			errs = append(errs, fmt.Errorf("allowedUnsafeSysctls: sysctl %q must have at most %d characters and match regex %s", name, maxSysctlLength, sysctlPattern))
		} else if space, prefix, _ := sysctl.GetNamespace(name); space == sysctl.UnknownNamespace {
			errs = append(errs, fmt.Errorf("allowedUnsafeSysctls: the sysctls %q are not known to be namespaced", prefix))
		}
	}
	return errors.Join(errs...)
}

// maxSysctlLength and sysctlPattern limit the entries of allowedUnsafeSysctls, as in upstream.
const maxSysctlLength = 253

var sysctlPattern = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]$`)
