package framework

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Devices is the scheduler's view of devices and resource claims, including allocations for pods that are being bound.
// Package scheduler implements it for plugins. All objects are shared and must not be modified. Methods return nil for
// objects that do not exist. https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
type Devices interface {
	Claim(namespace, name string) *resourcev1.ResourceClaim
	// ExtendedClaim returns the claim for a pod's extended resources, or nil.
	ExtendedClaim(pod types.UID) *resourcev1.ResourceClaim
	// Class returns the DeviceClass with this extended resource name, or nil.
	Class(resource corev1.ResourceName) *resourcev1.DeviceClass
	// Pending reports whether an allocation of the claim is being written.
	Pending(claim *resourcev1.ResourceClaim) bool
	Classes() structured.DeviceClassLister
	// Slices returns all ResourceSlices, including the taints of DeviceTaintRules.
	Slices() []*resourcev1.ResourceSlice
	// Allocated returns all allocated devices, including allocations that are being written. The
	// result is valid during the cycle.
	Allocated() structured.AllocatedState
	// Expressions returns the cache of compiled CEL expressions.
	Expressions() *cel.Cache
}

// Claimed is a resource claim whose allocation is written, and to whose consumers the pod is added, before the pod is
// bound.
type Claimed struct {
	Claim *resourcev1.ResourceClaim
	// Allocation is the allocation to write, or nil if the claim is already allocated.
	Allocation *resourcev1.AllocationResult
	// Pod is the pod that the claim is reserved for.
	Pod *corev1.Pod
	// Requests maps the pod's extended resources to requests of the claim. If it is not empty, the
	// claim has no name and must be created for this pod.
	Requests []corev1.ContainerExtendedResourceRequest
	// Made is the created claim. It is set by the goroutine that binds the pod.
	Made *resourcev1.ResourceClaim
}

// PlannedClaim returns the UID under which the scheduler records the devices for a pod's extended resources until their
// claim is created. No existing claim has this UID.
func PlannedClaim(pod types.UID) types.UID { return "planned-" + pod }

// RequestsDevices reports whether the DynamicResources plugin must evaluate a pod: it has resource claims, or requests
// extended resources that devices may satisfy.
func RequestsDevices(pod *corev1.Pod) bool {
	if len(pod.Spec.ResourceClaims) > 0 {
		return true
	}
	for _, list := range [2][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				if IsExtended(name) {
					return true
				}
			}
		}
	}
	return false
}

// IsExtended reports whether devices may satisfy requests of a resource: it is an extended resource, or the implicit
// extended resource of a device class.
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/#extended-resource
func IsExtended(name corev1.ResourceName) bool {
	domain, _, ok := strings.Cut(string(name), "/")
	switch {
	case !ok:
		return false
	case strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix):
		return true
	}
	return !strings.HasSuffix(domain, "kubernetes.io") && !strings.HasPrefix(domain, corev1.DefaultResourceRequestsPrefix)
}
