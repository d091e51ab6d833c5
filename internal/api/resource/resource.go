// Package resource defines the kinds of resource.k8s.io/v1, dynamic resource allocation, one file
// per kind. The declarative validation rules of the published types are checked by the functions
// that are generated in k8s.io/api. This package contains the remaining rules.
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
package resource

import (
	"context"
	"reflect"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

const (
	group   = "resource.k8s.io"
	version = "v1"
)

// Resources returns the definitions of the resources of the API group resource.k8s.io, in all served versions. Package
// catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{
		deviceClass().Resource(),
		resourceClaim().Resource(),
		resourceClaimTemplate().Resource(),
		resourceSlice().Resource(),
		deviceTaintRule().Resource(),
	}
}

// generated is the type of the functions that are generated in k8s.io/api for the declarative
// validation of the type T.
type generated[T any] func(ctx context.Context, op operation.Operation, at *field.Path, obj, old *T) field.ErrorList

// declared runs check, the generated declarative validation of the value obj at the path at, and
// returns its errors, marked as declarative. old is the stored value, nil on create. It drops the
// errors of alpha rules.
func declared[T any](ctx context.Context, check generated[T], at *field.Path, obj, old *T) field.ErrorList {
	op := operation.Operation{
		Type:    operation.Create,
		Options: map[string]bool{"DRAPartitionableDevicesType": false},
	}
	if old != nil {
		op.Type = operation.Update
	}
	var errs field.ErrorList
	for _, err := range check(ctx, op, at, obj, old) {
		if err.IsAlpha() {
			continue
		}
		// As in upstream, the value is formatted as the published type.
		if err.BadValue != nil {
			err.BadValue = tagged(err.BadValue)
		}
		// Declarative errors of the metadata come before.
		errs = append(errs, err.MarkCoveredByDeclarative())
	}
	return errs
}

// tagged wraps a struct in validate.Tagged, so that error messages show it with JSON names. It
// returns other values unchanged.
func tagged(value any) any {
	if reflect.ValueOf(value).Kind() == reflect.Struct {
		return validate.Tagged{Value: value}
	}
	return value
}

// defaultMode sets a missing allocation mode to ExactCount, and a missing count of this mode to 1.
func defaultMode(mode *resourcev1.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourcev1.DeviceAllocationModeExactCount
	}
	if *mode == resourcev1.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}

func defaultTolerations(list []resourcev1.DeviceToleration) {
	for i := range list {
		if list[i].Operator == "" {
			list[i].Operator = resourcev1.DeviceTolerationOpEqual
		}
	}
}

// defaultClaim sets the defaults of the device requests in the spec of a claim.
func defaultClaim(spec *resourcev1.ResourceClaimSpec) {
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if x := r.Exactly; x != nil {
			defaultMode(&x.AllocationMode, &x.Count)
			defaultTolerations(x.Tolerations)
		}
		for j := range r.FirstAvailable {
			s := &r.FirstAvailable[j]
			defaultMode(&s.AllocationMode, &s.Count)
			defaultTolerations(s.Tolerations)
		}
	}
}

// dropClaim clears attributes that are derived by expressions, a disabled feature, in the spec of a
// claim. It keeps them if was, the stored spec, has any. was is nil on create.
func dropClaim(spec, was *resourcev1.ResourceClaimSpec) {
	if was != nil && derives(was) {
		return
	}
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if r.Exactly != nil {
			r.Exactly.DerivedAttributes = nil
		}
		for j := range r.FirstAvailable {
			r.FirstAvailable[j].DerivedAttributes = nil
		}
	}
}

// derives reports whether a request in the spec of a claim has derived attributes.
func derives(spec *resourcev1.ResourceClaimSpec) bool {
	for _, r := range spec.Devices.Requests {
		if r.Exactly != nil && len(r.Exactly.DerivedAttributes) > 0 {
			return true
		}
		for _, s := range r.FirstAvailable {
			if len(s.DerivedAttributes) > 0 {
				return true
			}
		}
	}
	return false
}
