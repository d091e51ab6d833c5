package framework

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Devices is what is known of devices and of the claims to them, with what was
// decided for pods whose binding is under way. All objects are shared; nil is
// one that is not known.
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
type Devices interface {
	Claim(namespace, name string) *resourcev1.ResourceClaim
	// ExtendedClaim is that of the devices that a pod has asked for as extended
	// resources; nil if none was made.
	ExtendedClaim(pod types.UID) *resourcev1.ResourceClaim
	// Class is that of the devices which are the extended resource; nil for none.
	Class(resource corev1.ResourceName) *resourcev1.DeviceClass
	// Pending tells whether an allocation of the claim is being written.
	Pending(claim *resourcev1.ResourceClaim) bool
	Classes() structured.DeviceClassLister
	// Slices are all there are, with the taints of DeviceTaintRules.
	Slices() []*resourcev1.ResourceSlice
	// Allocated is what claims have, written or not. It is good for the cycle.
	Allocated() structured.AllocatedState
	// Expressions are compiled once.
	Expressions() *cel.Cache
}

// Claimed is a claim that a pod is to have when it is bound.
type Claimed struct {
	Claim *resourcev1.ResourceClaim
	// Allocation is to be written; nil: the claim has one already.
	Allocation *resourcev1.AllocationResult
	// Pod is whom the claim is reserved for.
	Pod *corev1.Pod
	// Requests of the claim by the extended resources that they stand for. With
	// any, the claim is still to be made, for this pod; it has no name yet.
	Requests []corev1.ContainerExtendedResourceRequest
	// Made is the claim once it is made, for who writes it.
	Made *resourcev1.ResourceClaim
}

// PlannedClaim is the UID, until the claim is made, of the one that is to be made
// for a pod. No claim has it.
func PlannedClaim(pod types.UID) types.UID { return "planned-" + pod }

// AsksDevices tells whether a pod has resource claims, or requests that may stand
// for one.
func AsksDevices(pod *corev1.Pod) bool {
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

// IsExtended tells whether a resource is one that devices may be: of a domain of
// its own, or of a device class.
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
