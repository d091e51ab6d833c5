package quota

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

// DeviceClaims is the resource whose devices are limited by their class.
var DeviceClaims = resourcev1.Resource("resourceclaims")

const countDeviceClaims = corev1.ResourceName("count/resourceclaims.resource.k8s.io")

// CountsDevices tells whether a name is that of the devices of a class.
//
// https://kubernetes.io/docs/concepts/policy/resource-quotas/#resource-quota-for-devices
func CountsDevices(name corev1.ResourceName) bool {
	return strings.HasSuffix(string(name), corev1.ResourceClaimsPerClass)
}

func deviceClaims(list generic.ListFuncByNamespace) quota.Evaluator {
	return &evaluator{
		resource: DeviceClaims,
		list:     list,
		handles: func(a admission.Attributes) bool {
			return a.GetSubresource() == "" && (a.GetOperation() == admission.Create || a.GetOperation() == admission.Update)
		},
		names: func(in []corev1.ResourceName) []corev1.ResourceName {
			var out []corev1.ResourceName
			for _, n := range in {
				if n == countDeviceClaims || CountsDevices(n) {
					out = append(out, n)
				}
			}
			return out
		},
		usage: deviceUsage,
	}
}

// deviceUsage counts the devices that a claim asks for at most.
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
		// One of these will be: what costs most of each class counts.
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
