package framework

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Devices is what is known of devices and of the claims to them, with what was
// decided for pods whose binding is under way. All objects are shared; nil is
// one that is not known.
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
type Devices interface {
	Claim(namespace, name string) *resourcev1.ResourceClaim
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
}
