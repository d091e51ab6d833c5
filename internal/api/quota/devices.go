package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"

	"hyperkube/internal/api/validate"
)

// DeviceClaims is the resource whose devices are limited per device class.
var DeviceClaims = resourcev1.Resource("resourceclaims")

const countDeviceClaims = corev1.ResourceName("count/resourceclaims.resource.k8s.io")

// countsDevices reports whether name is a quota for the devices of a device class, such as
// gpu.deviceclass.resource.k8s.io/devices.
//
// https://kubernetes.io/docs/concepts/policy/resource-quotas/#resource-quota-for-devices
func countsDevices(name corev1.ResourceName) bool {
	return strings.HasSuffix(string(name), corev1.ResourceClaimsPerClass)
}

// extendedRequest reports whether name is a quota for the requests of an extended resource, such as
// requests.example.com/gpu.
func extendedRequest(name corev1.ResourceName) bool {
	s := string(name)
	return strings.HasPrefix(s, requestsPrefix) && (!validate.IsNative(name) || strings.HasPrefix(s, corev1.ResourceImplicitExtendedClaimsPerClass))
}

// MayCountDevices reports whether name can limit devices that are requested by claims: the devices
// of a class or of the extended resource that maps to the class.
func MayCountDevices(name corev1.ResourceName) bool {
	return countsDevices(name) || extendedRequest(name)
}

// Devices reads the objects of other kinds that are needed to compute the device usage of
// ResourceClaims. The callers of Claims provide it, for example from caches. The returned objects
// must not be modified.
type Devices struct {
	Classes func() ([]*resourcev1.DeviceClass, error)
	// Pod may return nil if the pod does not exist.
	Pod func(namespace, name string) (*corev1.Pod, error)
	// Claims returns the claims of a namespace.
	Claims func(namespace string) ([]*resourcev1.ResourceClaim, error)
	Now    func() time.Time
}

// Claims creates the evaluator of ResourceClaims: it counts claims, their devices per device class,
// and these devices as usage of the extended resource that their class maps to. list lists the
// claims of a namespace.
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/#extended-resource
func Claims(list generic.ListFuncByNamespace, devices Devices) quota.Evaluator {
	e := deviceClaims(list)
	names, usage := e.names, e.usage
	e.names = func(in []corev1.ResourceName) []corev1.ResourceName {
		out := names(in)
		var extended map[string]string
		for _, n := range in {
			if !extendedRequest(n) {
				continue
			}
			if extended == nil {
				var err error
				if extended, err = devices.extended(); err != nil {
					return out
				}
			}
			class, implicit := strings.CutPrefix(string(n), corev1.ResourceImplicitExtendedClaimsPerClass)
			if implicit && extended[class] != "" || slices.Contains(slices.Collect(maps.Values(extended)), strings.TrimPrefix(string(n), requestsPrefix)) {
				out = append(out, n)
			}
		}
		return out
	}
	e.usage = func(item runtime.Object) (corev1.ResourceList, error) {
		used, err := usage(item)
		if err != nil {
			return nil, err
		}
		return used, devices.add(used, item)
	}
	return e
}

// extended returns the name of the extended resource of each device class that has one, by the name
// of the class.
func (d Devices) extended() (map[string]string, error) {
	classes, err := d.Classes()
	if err != nil {
		return nil, fmt.Errorf("listing device classes: %w", err)
	}
	out := map[string]string{}
	for _, c := range classes {
		if n := c.Spec.ExtendedResourceName; n != nil && *n != "" {
			out[c.Name] = *n
		}
	}
	return out, nil
}

// add adds to used, the usage of a claim per device class, the usage of the corresponding extended
// resources. It subtracts the usage that is already counted for the pod that owns the claim. item
// must be a ResourceClaim.
func (d Devices) add(used corev1.ResourceList, item runtime.Object) error {
	claim, err := as[*resourcev1.ResourceClaim](item)
	if err != nil {
		return err
	}
	more := corev1.ResourceList{}
	var extended map[string]string
	for name, q := range used {
		class, ok := strings.CutSuffix(string(name), corev1.ResourceClaimsPerClass)
		if !ok || class == "" {
			continue
		}
		if extended == nil {
			if extended, err = d.extended(); err != nil {
				return err
			}
		}
		more[corev1.ResourceName(corev1.ResourceImplicitExtendedClaimsPerClass+class)] = q
		if n := extended[class]; n != "" {
			more[corev1.ResourceName(requestsPrefix+n)] = q
		}
	}
	if len(more) == 0 {
		return nil
	}
	counted := d.countedByPod(claim)
	for name, q := range more {
		q = q.DeepCopy()
		if by, ok := counted[name]; ok {
			q.Sub(by)
		}
		if q.Sign() > 0 {
			used[name] = q
		}
	}
	return nil
}

// countedByPod returns the usage of the pod for whose extended resources the scheduler created the
// claim, because quotas already count that usage. It returns nil for other claims, including claims
// with the annotation whose owner does not match, and if the pod cannot be read.
func (d Devices) countedByPod(claim *resourcev1.ResourceClaim) corev1.ResourceList {
	owner := metav1.GetControllerOfNoCopy(claim)
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" || owner == nil || owner.Kind != "Pod" || owner.APIVersion != "v1" {
		return nil
	}
	pod, err := d.Pod(claim.Namespace, owner.Name)
	if err != nil || pod == nil || pod.UID != owner.UID {
		return nil
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		if status.ResourceClaimName != claim.Name {
			return nil
		}
		return podUsage(pod, d.Now())
	}
	// The pod status does not name the claim yet: the first claim of the pod is used.
	all, err := d.Claims(claim.Namespace)
	if err != nil {
		return nil
	}
	for _, other := range all {
		ref := metav1.GetControllerOfNoCopy(other)
		if ref == nil || ref.UID != owner.UID || other.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
			continue
		}
		if c := other.CreationTimestamp.Compare(claim.CreationTimestamp.Time); c < 0 || c == 0 && other.Name < claim.Name {
			return nil
		}
	}
	return podUsage(pod, d.Now())
}

// deviceClaims creates the evaluator of ResourceClaims that counts claims and their devices per device class.
func deviceClaims(list generic.ListFuncByNamespace) *evaluator {
	return &evaluator{
		resource: DeviceClaims,
		list:     list,
		handles: func(a admission.Attributes) bool {
			return a.GetSubresource() == "" && (a.GetOperation() == admission.Create || a.GetOperation() == admission.Update)
		},
		names: func(in []corev1.ResourceName) []corev1.ResourceName {
			var out []corev1.ResourceName
			for _, n := range in {
				if n == countDeviceClaims || countsDevices(n) {
					out = append(out, n)
				}
			}
			return out
		},
		usage: deviceUsage,
	}
}

// deviceUsage returns the number of claims, 1, and the maximum number of devices per device class
// that the claim requests. item must be a ResourceClaim.
func deviceUsage(item runtime.Object) (corev1.ResourceList, error) {
	claim, err := as[*resourcev1.ResourceClaim](item)
	if err != nil {
		return nil, err
	}
	out := corev1.ResourceList{countDeviceClaims: one()}
	for _, r := range claim.Spec.Devices.Requests {
		most := map[corev1.ResourceName]int64{}
		note := func(class string, mode resourcev1.DeviceAllocationMode, count int64) {
			switch mode {
			case resourcev1.DeviceAllocationModeExactCount:
			case resourcev1.DeviceAllocationModeAll:
				count = resourcev1.AllocationResultsMaxSize
			default:
				count = 0
			}
			name := corev1.ResourceName(class + corev1.ResourceClaimsPerClass)
			most[name] = max(most[name], count)
		}
		if r.Exactly != nil {
			note(r.Exactly.DeviceClassName, r.Exactly.AllocationMode, r.Exactly.Count)
		}
		// Only one of the alternatives is allocated, so count the maximum of each class.
		for _, s := range r.FirstAvailable {
			note(s.DeviceClassName, s.AllocationMode, s.Count)
		}
		for name, n := range most {
			sum := out[name]
			sum.Add(*resource.NewQuantity(n, resource.DecimalSI))
			out[name] = sum
		}
	}
	return out, nil
}
