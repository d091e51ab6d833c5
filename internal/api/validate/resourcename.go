package validate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"
)

// IsHugePage tells resources such as hugepages-2Mi.
func IsHugePage(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// IsNative tells resources whose names have no domain, or Kubernetes' own.
func IsNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// IsExtended tells resources such as example.com/gpu.
func IsExtended(name corev1.ResourceName) bool {
	if IsNative(name) || strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	// It must have a name in resource quotas too.
	return len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

// IsOvercommitAllowed tells resources whose limit may exceed the request.
func IsOvercommitAllowed(name corev1.ResourceName) bool {
	return IsNative(name) && !IsHugePage(name)
}

// isInteger tells resources that are counted in whole numbers.
func isInteger(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices,
		corev1.ResourceReplicationControllers, corev1.ResourceSecrets, corev1.ResourceConfigMaps,
		corev1.ResourcePersistentVolumeClaims, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers:
		return true
	}
	return IsExtended(name)
}

// isStandardContainer tells the resources that Kubernetes itself gives to
// containers.
func isStandardContainer(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	return IsHugePage(name)
}

// isStandard tells the resources that Kubernetes itself knows.
func isStandard(name corev1.ResourceName) bool {
	return IsQuota(name) || name == corev1.ResourceStorage
}

// IsQuota tells the resources without a domain that quotas count.
func IsQuota(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
		corev1.ResourceRequestsStorage, corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices,
		corev1.ResourceReplicationControllers, corev1.ResourceSecrets, corev1.ResourcePersistentVolumeClaims,
		corev1.ResourceConfigMaps, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers:
		return true
	}
	return isStandardContainer(name) || strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

// ResourceName checks the name of a resource: a standard one, or one with a
// domain.
func ResourceName(e *Errors, at *field.Path, name corev1.ResourceName) {
	if msgs := validation.IsQualifiedName(string(name)); len(msgs) > 0 {
		e.InvalidAll(at, name, msgs)
		return
	}
	if !strings.Contains(string(name), "/") && !isStandard(name) {
		e.Invalid(at, name, "must be a standard resource type or fully qualified")
	}
}

// ContainerResourceName checks the name of a resource that a container asks
// for.
func ContainerResourceName(e *Errors, at *field.Path, name corev1.ResourceName) {
	if isStandardContainer(name) && !IsHugePage(name) {
		return
	}
	ResourceName(e, at, name)
	switch {
	case !strings.Contains(string(name), "/"):
		if !isStandardContainer(name) {
			e.Invalid(at, name, "must be a standard resource for containers")
		}
	case !IsNative(name) && !IsExtended(name):
		e.Invalid(at, name, "doesn't follow extended resource name standard")
	}
}

// QuotaResourceName checks the name of what a quota limits.
func QuotaResourceName(e *Errors, at *field.Path, name corev1.ResourceName) {
	ResourceName(e, at, name)
	if !strings.Contains(string(name), "/") && !IsQuota(name) {
		e.Invalid(at, name, "must be a standard resource for quota")
	}
}

// PodResourceName checks the name of a resource that a pod asks for as a
// whole.
func PodResourceName(e *Errors, at *field.Path, name corev1.ResourceName) {
	before := len(e.List)
	ResourceName(e, at, name)
	if len(e.List) == before && !resourcehelper.IsSupportedPodLevelResource(name) {
		e.Add(field.ErrorList{field.NotSupported(at, name, sets.List(resourcehelper.SupportedPodLevelResources()))})
	}
}
