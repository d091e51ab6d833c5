package validate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"
)

// IsHugePage reports whether a resource is a huge page resource such as hugepages-2Mi.
func IsHugePage(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// IsNative reports whether a resource name has no domain or contains the domain kubernetes.io/, so
// that it is not an extended resource.
func IsNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// IsExtended reports whether a resource is an extended resource such as example.com/gpu.
func IsExtended(name corev1.ResourceName) bool {
	if IsNative(name) || strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	// It must also be valid with the prefix for resource quotas.
	return len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

// IsOvercommitAllowed reports whether the limit of a resource may exceed the request.
func IsOvercommitAllowed(name corev1.ResourceName) bool {
	return IsNative(name) && !IsHugePage(name)
}

// isInteger reports whether a resource is counted, so that its quantities must be integers: objects
// and extended resources.
func isInteger(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices,
		corev1.ResourceReplicationControllers, corev1.ResourceSecrets, corev1.ResourceConfigMaps,
		corev1.ResourcePersistentVolumeClaims, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers:
		return true
	}
	return IsExtended(name)
}

// isStandardContainer reports whether containers can request a resource that Kubernetes itself
// defines: CPU, memory, ephemeral storage or huge pages.
func isStandardContainer(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	return IsHugePage(name)
}

// isStandard reports whether Kubernetes itself defines a resource name without a domain, in
// containers, quotas or volumes.
func isStandard(name corev1.ResourceName) bool {
	return IsQuota(name) || name == corev1.ResourceStorage
}

// IsQuota reports whether a ResourceQuota can limit a resource name that Kubernetes itself defines,
// such as pods or limits.cpu. It returns false for count/ names and other names with a domain.
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

// ResourceName validates the name of a resource: a standard name or a domain-prefixed one.
func ResourceName(e *Errors, at *field.Path, name corev1.ResourceName) {
	if msgs := validation.IsQualifiedName(string(name)); len(msgs) > 0 {
		e.InvalidAll(at, name, msgs)
		return
	}
	if !strings.Contains(string(name), "/") && !isStandard(name) {
		e.Invalid(at, name, "must be a standard resource type or fully qualified")
	}
}

// ContainerResourceName checks that a container can request or limit the resource name: a standard
// container resource or an extended resource.
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

// QuotaResourceName checks that a ResourceQuota can limit the resource name: a standard quota
// resource or a name with a domain.
func QuotaResourceName(e *Errors, at *field.Path, name corev1.ResourceName) {
	ResourceName(e, at, name)
	if !strings.Contains(string(name), "/") && !IsQuota(name) {
		e.Invalid(at, name, "must be a standard resource for quota")
	}
}

// PodResourceName checks that a pod can specify the resource name in its pod-level resources.
func PodResourceName(e *Errors, at *field.Path, name corev1.ResourceName) {
	before := len(e.List)
	ResourceName(e, at, name)
	if len(e.List) == before && !resourcehelper.IsSupportedPodLevelResource(name) {
		e.Add(field.ErrorList{field.NotSupported(at, name, sets.List(resourcehelper.SupportedPodLevelResources()))})
	}
}
