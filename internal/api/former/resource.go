package former

import (
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
)

// resourceVersions returns the readers of device claims and slices in v1beta1: the fields of an
// exact device request were part of the request itself, and all fields of a device were in the
// field basic.
func resourceVersions() []version {
	v1, beta := resourcev1.SchemeGroupVersion, resourcev1beta1.SchemeGroupVersion
	return []version{
		{"ResourceClaim", v1, beta, convertByName(func(old *resourcev1beta1.ResourceClaim, now *resourcev1.ResourceClaim) error {
			return exactly(old.Spec.Devices.Requests, now.Spec.Devices.Requests)
		})},
		{"ResourceClaimTemplate", v1, beta, convertByName(func(old *resourcev1beta1.ResourceClaimTemplate, now *resourcev1.ResourceClaimTemplate) error {
			return exactly(old.Spec.Spec.Devices.Requests, now.Spec.Spec.Devices.Requests)
		})},
		{"ResourceSlice", v1, beta, convertByName(func(old *resourcev1beta1.ResourceSlice, now *resourcev1.ResourceSlice) error {
			if old.Spec.NodeName == "" {
				now.Spec.NodeName = nil
			}
			if !old.Spec.AllNodes {
				now.Spec.AllNodes = nil
			}
			for i := range old.Spec.Devices {
				basic := old.Spec.Devices[i].Basic
				if basic == nil {
					continue
				}
				if err := copyByName(basic, &now.Spec.Devices[i]); err != nil {
					return err
				}
			}
			return nil
		})},
	}
}

// exactly sets the field exactly of the converted device requests now from the requests old. Requests with alternatives
// are skipped.
func exactly(old []resourcev1beta1.DeviceRequest, now []resourcev1.DeviceRequest) error {
	for i := range old {
		o := &old[i]
		if o.DeviceClassName == "" && o.Selectors == nil && o.AllocationMode == "" && o.Count == 0 && o.AdminAccess == nil &&
			o.Tolerations == nil && o.Capacity == nil && o.DerivedAttributes == nil {
			continue // it has alternatives instead
		}
		exact := &resourcev1.ExactDeviceRequest{}
		if err := copyByName(o, exact); err != nil {
			return err
		}
		now[i].Exactly = exact
		if o.DeviceClassName != "" && exact.AllocationMode == "" {
			exact.AllocationMode = resourcev1.DeviceAllocationModeExactCount
		}
		if exact.AllocationMode == resourcev1.DeviceAllocationModeExactCount && exact.Count == 0 && o.DeviceClassName != "" {
			exact.Count = 1
		}
	}
	return nil
}
