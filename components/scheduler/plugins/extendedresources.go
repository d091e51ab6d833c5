package plugins

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/pod/podutil"
)

// extended are the extended resources of a pod that devices may satisfy. On a node with a device
// plugin for the resource, the device plugin's devices are used instead. The methods accept a nil
// receiver, which means that the pod has no such resources.
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/#extended-resource
type extended struct {
	pod *corev1.Pod
	// stale is true if a claim of a failed attempt exists.
	stale bool
	// classes are the device classes by resource.
	classes map[corev1.ResourceName]*resourcev1.DeviceClass
	// planned are the claims by the list of their resources.
	planned map[string]plannedClaim
}

// plannedClaim is a claim that the scheduler would create for the pod, and the mapping of its requests to the pod's
// containers.
type plannedClaim struct {
	claim    *resourcev1.ResourceClaim
	requests []corev1.ContainerExtendedResourceRequest
}

// newExtended returns the extended resources of the pod that is being scheduled that devices may satisfy, or nil if
// the pod requests none.
func newExtended(c *framework.Cycle) *extended {
	if c.Devices == nil {
		return nil
	}
	var e *extended
	for name, v := range c.Pod.Requests.Scalar {
		if v == 0 || !framework.IsExtended(name) {
			continue
		}
		if class := c.Devices.Class(name); class != nil {
			if e == nil {
				e = &extended{
					pod: c.Pod.Object, stale: c.Devices.ExtendedClaim(c.Pod.Object.UID) != nil,
					classes: map[corev1.ResourceName]*resourcev1.DeviceClass{}, planned: map[string]plannedClaim{},
				}
			}
			e.classes[name] = class
		}
	}
	return e
}

// claim returns the claim to create for the pod if it is assigned to the node n, and the mapping of its requests to the
// pod's containers. It returns nil if device plugins of the node provide all of the resources.
func (e *extended) claim(n *state.Node) (*resourcev1.ResourceClaim, []corev1.ContainerExtendedResourceRequest) {
	if e == nil {
		return nil, nil
	}
	wanted := map[corev1.ResourceName]string{}
	key := ""
	for _, name := range slices.Sorted(maps.Keys(e.classes)) {
		if n.Allocatable.Scalar[name] == 0 {
			wanted[name] = e.classes[name].Name
			key += string(name) + " "
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	made, ok := e.planned[key]
	if !ok {
		made.claim = &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: e.pod.Namespace, Name: "<extended-resources>", GenerateName: e.pod.Name + "-extended-resources-",
			UID:         framework.PlannedClaim(e.pod.UID),
			Annotations: map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: e.pod.Name, UID: e.pod.UID, Controller: new(true),
			}},
		}}
		made.claim.Spec.Devices.Requests, made.requests = extendedRequests(e.pod, wanted)
		e.planned[key] = made
	}
	return made.claim, made.requests
}

// extendedRequests returns the device requests of a claim for the extended resources of a pod, and the mapping of the
// requests to containers. classes are the device classes by resource. Init containers that terminate before the other
// containers start reuse the devices of later containers. The additional devices that they need are requested once and
// shared among them.
func extendedRequests(pod *corev1.Pod, classes map[corev1.ResourceName]string) ([]resourcev1.DeviceRequest, []corev1.ContainerExtendedResourceRequest) {
	containers := append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...)
	ends := func(i int) bool {
		return i < len(pod.Spec.InitContainers) && !podutil.Sidecar(&containers[i])
	}
	var requests []resourcev1.DeviceRequest
	var mappings []corev1.ContainerExtendedResourceRequest
	for _, resource := range slices.Sorted(maps.Keys(classes)) {
		stand := func(i int, request string) corev1.ContainerExtendedResourceRequest {
			return corev1.ContainerExtendedResourceRequest{ContainerName: containers[i].Name, ResourceName: string(resource), RequestName: request}
		}
		lasting := make([]*resourcev1.DeviceRequest, len(containers))
		for i := range containers {
			if n := extendedCount(&containers[i], resource); n > 0 && !ends(i) {
				lasting[i] = extendedRequest(&containers[i], i, resource, classes[resource], n)
				mappings = append(mappings, stand(i, lasting[i].Name))
			}
		}
		// Request the maximum of what terminating containers need additionally, once for all.
		var most *resourcev1.DeviceRequest
		var more []int // the containers that use it
		var own []corev1.ContainerExtendedResourceRequest
		for i := range containers {
			n := extendedCount(&containers[i], resource)
			if n == 0 || !ends(i) {
				continue
			}
			for _, r := range lasting[i:] {
				if r != nil && n > 0 {
					n -= r.Exactly.Count
					own = append(own, stand(i, r.Name))
				}
			}
			if n <= 0 {
				continue
			}
			own, more = append(own, stand(i, "")), append(more, len(own))
			if r := extendedRequest(&containers[i], i, resource, classes[resource], n); most == nil || most.Exactly.Count < n {
				most = r
			}
		}
		for _, i := range more {
			own[i].RequestName = most.Name
		}
		mappings = append(mappings, own...)
		if most != nil {
			requests = append(requests, *most)
		}
		for _, r := range lasting {
			if r != nil {
				requests = append(requests, *r)
			}
		}
	}
	slices.SortFunc(requests, func(a, b resourcev1.DeviceRequest) int { return cmp.Compare(a.Name, b.Name) })
	return requests, mappings
}

// extendedCount returns the number of devices of a resource that a container requests.
func extendedCount(c *corev1.Container, resource corev1.ResourceName) int64 {
	q := c.Resources.Requests[resource]
	n, ok := q.AsInt64()
	if !ok {
		return 0
	}
	return n
}

// extendedRequest returns a request of a claim for n devices of a class. i is the index of the container among init
// containers and containers. Upstream's request names contain it, and the index of the resource among the sorted
// resources of the container.
func extendedRequest(c *corev1.Container, i int, resource corev1.ResourceName, class string, n int64) *resourcev1.DeviceRequest {
	k := slices.Index(slices.Sorted(maps.Keys(c.Resources.Requests)), resource)
	return &resourcev1.DeviceRequest{
		Name:    fmt.Sprintf("container-%d-request-%d", i, k),
		Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n},
	}
}
