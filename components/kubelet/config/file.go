package config

import (
	"errors"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/base/featuregates"
)

// decodeFile decodes a KubeletConfiguration in YAML or JSON. Unknown fields and other kinds are an error.
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

// Apply sets the fields of c to the values of the fields that f sets, and leaves the others unchanged. It
// reads the certificates that f refers to. It returns an error if f is not valid or has unsupported settings.
// f becomes c.File.
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

// overridePtr assigns *from to *to, unless from is nil. It is for optional fields whose zero value is valid.
func overridePtr[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// overrideNumber assigns *from, converted to the type of *to, to *to, unless from is nil. It is for numbers whose
// types differ in Config and KubeletConfiguration.
func overrideNumber[T, F ~int | ~int32 | ~int64](to *T, from *F) {
	if from != nil {
		*to = T(*from)
	}
}

// overrideInverted assigns the opposite of *from to *to, unless from is nil. It is for fields of Config that
// disable what a field of KubeletConfiguration enables.
func overrideInverted(to, from *bool) {
	if from != nil {
		*to = !*from
	}
}

// applyPaths sets the fields of c for paths, endpoints, ports, the registration of the node and feature gates
// to the values of the configuration file f. Fields that f does not set remain, except the read-only port,
// which is then zero.
func (c *Config) applyPaths(f *kubeletv1beta1.KubeletConfiguration) {
	override(&c.Layout.PodLogs, f.PodLogsDir)
	override(&c.Layout.CgroupRoot, f.CgroupRoot)
	override(&c.Runtime.Endpoint, f.ContainerRuntimeEndpoint)
	override(&c.Runtime.Timeout, f.RuntimeRequestTimeout.Duration)
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
