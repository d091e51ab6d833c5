package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

// checkFile returns an error that describes the invalid fields of a configuration file, including fields that
// have no effect here. It rejects what upstream's kubelet rejects, so that an invalid file is found before it
// reaches other nodes. Config.validate does the remaining checks.
func checkFile(f *kubeletv1beta1.KubeletConfiguration) error {
	return errors.Join(checkNumbers(f), checkThresholds(f), checkSysctls(f.DefaultPodSysctls), checkTaints(f.RegisterWithTaints), checkPodLogs(f.PodLogsDir),
		checkEnforced(f))
}

// derefOr returns *n, or otherwise if n is nil.
func derefOr(n *int32, otherwise int32) int32 {
	if n != nil {
		return *n
	}
	return otherwise
}

// checkNumbers returns an error for each number that is out of its range.
func checkNumbers(f *kubeletv1beta1.KubeletConfiguration) error {
	var errs []error
	for _, c := range []struct {
		name        string
		value       int32
		least, most int32
	}{
		{"healthzPort (--healthz-port)", derefOr(f.HealthzPort, 1), 0, 65535},
		{"port (--port)", f.Port, 0, 65535},
		{"imageGCHighThresholdPercent (--image-gc-high-threshold)", derefOr(f.ImageGCHighThresholdPercent, defaultImageGCHigh), 0, 100},
		{"imageGCLowThresholdPercent (--image-gc-low-threshold)", derefOr(f.ImageGCLowThresholdPercent, defaultImageGCLow), 0, 100},
		{"iptablesDropBit (--iptables-drop-bit)", derefOr(f.IPTablesDropBit, defaultIPTablesDropBit), 0, 31},
		{"iptablesMasqueradeBit (--iptables-masquerade-bit)", derefOr(f.IPTablesMasqueradeBit, defaultIPTablesMasqueradeBit), 0, 31},
	} {
		if c.value < c.least || c.value > c.most {
			least := c.least
			if c.most == 65535 {
				least = 1 // 0 disables the port or means the default
			}
			errs = append(errs, fmt.Errorf("%s %d must be between %d and %d, inclusive", c.name, c.value, least, c.most))
		}
	}
	for _, c := range []struct {
		name  string
		value int64
	}{
		{"kubeAPIBurst (--kube-api-burst)", int64(f.KubeAPIBurst)}, {"kubeAPIQPS (--kube-api-qps)", int64(derefOr(f.KubeAPIQPS, defaultAPIQPS))},
		{"maxOpenFiles (--max-open-files)", f.MaxOpenFiles},
	} {
		if c.value < 0 {
			errs = append(errs, fmt.Errorf("%s %d must not be a negative number", c.name, c.value))
		}
	}
	if f.NodeLeaseDurationSeconds < 0 {
		errs = append(errs, errors.New("nodeLeaseDurationSeconds must be greater than 0"))
	}
	return errors.Join(errs...)
}

// checkThresholds validates the thresholds and ages of image garbage collection.
func checkThresholds(f *kubeletv1beta1.KubeletConfiguration) error {
	var errs []error
	if low, high := derefOr(f.ImageGCLowThresholdPercent, defaultImageGCLow), derefOr(f.ImageGCHighThresholdPercent, defaultImageGCHigh); low >= high {
		errs = append(errs, fmt.Errorf("imageGCLowThresholdPercent (--image-gc-low-threshold) %d must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) %d", low, high))
	}
	if d := f.ImageMinimumGCAge.Duration; d < 0 {
		errs = append(errs, fmt.Errorf("imageMinimumGCAge %v must not be negative", d))
	}
	if d := f.ImageMaximumGCAge.Duration; d < 0 {
		errs = append(errs, fmt.Errorf("imageMaximumGCAge %v must not be negative", d))
	}
	return errors.Join(errs...)
}

// sysctlName matches sysctl names, with dots or slashes as separators.
var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

// checkSysctls validates the names of the default sysctls of pods.
func checkSysctls(settings map[string]string) error {
	var errs []error
	seen := map[string]bool{}
	for name := range settings {
		plain := strings.ReplaceAll(name, "/", ".")
		switch {
		case len(name) > validation.DNS1123SubdomainMaxLength || !sysctlName.MatchString(name):
			errs = append(errs, fmt.Errorf("%q is not a valid sysctl name for defaultPodSysctls", name))
		case seen[plain]:
			errs = append(errs, fmt.Errorf("duplicate sysctl %q found in defaultPodSysctls", plain))
		}
		seen[plain] = true
	}
	return errors.Join(errs...)
}

// checkTaints validates the taints that the node is registered with.
func checkTaints(taints []v1.Taint) error {
	var errs []error
	effects := []v1.TaintEffect{"", v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute}
	for _, t := range taints {
		wrong := validation.IsQualifiedName(t.Key)
		if t.Value != "" {
			wrong = append(wrong, validation.IsValidLabelValue(t.Value)...)
		}
		if !slices.Contains(effects, t.Effect) {
			wrong = append(wrong, fmt.Sprintf("invalid taint effect: %v, unsupported taint effect", t.Effect))
		}
		if len(wrong) > 0 {
			errs = append(errs, fmt.Errorf("invalid taint: %s=%s:%s: %s", t.Key, t.Value, t.Effect, strings.Join(wrong, "; ")))
		}
		if t.TimeAdded != nil {
			errs = append(errs, errors.New("taint.TimeAdded is not nil"))
		}
	}
	return errors.Join(errs...)
}

// checkPodLogs validates the directory of pod logs. Its path is part of metric labels and symbolic
// links.
func checkPodLogs(dir string) error {
	switch {
	case dir == "":
		return nil
	case !filepath.IsAbs(dir):
		return fmt.Errorf("pod logs path %q must be absolute path", dir)
	case filepath.Clean(dir) != dir:
		return fmt.Errorf("pod logs path %q must be normalized", dir)
	case strings.ContainsFunc(dir, func(c rune) bool { return c > 127 }):
		return fmt.Errorf("pod logs path %q must contain ASCII characters only", dir)
	}
	return nil
}

// checkEnforced validates which limits of reserved resources are enforced, and the fields that depend on
// that.
func checkEnforced(f *kubeletv1beta1.KubeletConfiguration) error {
	var errs []error
	for i, name := range f.EnforceNodeAllocatable {
		if slices.Contains(f.EnforceNodeAllocatable[:i], name) {
			errs = append(errs, fmt.Errorf("duplicated enforcements %q in enforceNodeAllocatable (--enforce-node-allocatable)", name))
		}
	}
	if f.CgroupsPerQOS != nil && !*f.CgroupsPerQOS {
		for _, name := range f.EnforceNodeAllocatable {
			if name != "none" {
				errs = append(errs, fmt.Errorf("cgroupsPerQOS (--cgroups-per-qos) must be set to true when %q contained in enforceNodeAllocatable (--enforce-node-allocatable)", name))
			}
		}
	}
	if f.ReservedSystemCPUs != "" && (f.SystemReservedCgroup != "" || f.KubeReservedCgroup != "") {
		errs = append(errs, errors.New("can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)"))
	}
	return errors.Join(errs...)
}

// rejectUnsupported returns an error for each setting that has an effect in upstream's kubelet but is not
// supported. Fields that are neither rejected here nor read have no effect, because this kubelet reacts to
// events where upstream polls, or leaves the task to the runtime; docs/node-configuration.md lists them.
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
