package resource

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func resourceSlice() api.Kind[*resourcev1.ResourceSlice] {
	spec := resourcev1.ResourceSliceSpec{}.SwaggerDoc()
	return api.Kind[*resourcev1.ResourceSlice]{
		Names:   api.Names{Kind: "ResourceSlice", Plural: "resourceslices"},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *resourcev1.ResourceSlice { return &resourcev1.ResourceSlice{} },
		NewList: func() runtime.Object { return &resourcev1.ResourceSliceList{} },

		Default: func(s *resourcev1.ResourceSlice) {
			for i := range s.Spec.Devices {
				for j := range s.Spec.Devices[i].Taints {
					defaultTaint(&s.Spec.Devices[i].Taints[j])
				}
			}
		},
		PrepareCreate: func(_ context.Context, s *resourcev1.ResourceSlice) {
			s.Generation = 1
			dropSlice(&s.Spec, nil)
		},
		Validate: func(ctx context.Context, s *resourcev1.ResourceSlice) field.ErrorList {
			return checkSlice(ctx, s, nil)
		},
		Update: api.KindUpdate[*resourcev1.ResourceSlice]{
			Prepare: func(_ context.Context, s, old *resourcev1.ResourceSlice) {
				s.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(s.Spec, old.Spec) {
					s.Generation++
				}
				dropSlice(&s.Spec, &old.Spec)
			},
			Validate: checkSlice,
		},
		Warnings: func(_ context.Context, s, _ *resourcev1.ResourceSlice) []string {
			if name := s.Spec.Driver; name != strings.ToLower(name) {
				return []string{fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters", name)}
			}
			return nil
		},
		Fields: func(s *resourcev1.ResourceSlice) fields.Set {
			set := fields.Set{
				resourcev1.ResourceSliceSelectorNodeName: "",
				resourcev1.ResourceSliceSelectorDriver:   s.Spec.Driver,
				resourcev1.ResourceSliceSelectorPoolName: s.Spec.Pool.Name,
			}
			if s.Spec.NodeName != nil {
				set[resourcev1.ResourceSliceSelectorNodeName] = *s.Spec.NodeName
			}
			return set
		},
		FieldNames: []string{resourcev1.ResourceSliceSelectorNodeName, resourcev1.ResourceSliceSelectorDriver, resourcev1.ResourceSliceSelectorPoolName},
		NoField:    "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: %s",
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Node", "string", spec["nodeName"]),
			api.Column("Driver", "string", spec["driver"]),
			api.Column("Pool", "string", resourcev1.ResourcePool{}.SwaggerDoc()["name"]),
			api.AgeColumn,
		},
		Row: func(s *resourcev1.ResourceSlice) []any {
			node := ""
			if s.Spec.NodeName != nil {
				node = *s.Spec.NodeName
			}
			return []any{s.Name, node, s.Spec.Driver, s.Spec.Pool.Name, api.Age(s.CreationTimestamp)}
		},
	}
}

// dropSlice clears the fields of disabled features in the spec of a ResourceSlice, unless was, the
// stored spec, uses the feature. was is nil on create.
func dropSlice(spec, was *resourcev1.ResourceSliceSpec) {
	if was == nil {
		was = &resourcev1.ResourceSliceSpec{}
	}
	if was.PartitionTypeAttribute == nil {
		spec.PartitionTypeAttribute = nil
	}
	if len(was.SkipNodeOperations) == 0 {
		spec.SkipNodeOperations = nil
	}
	allocatable := func(d resourcev1.Device) bool { return len(d.NodeAllocatableResources) > 0 }
	groups := func(d resourcev1.Device) bool {
		return slices.ContainsFunc(d.ConsumesCounters, func(c resourcev1.DeviceCounterConsumption) bool { return len(c.CompatibilityGroups) > 0 })
	}
	dropAllocatable, dropGroups, dropLists := !slices.ContainsFunc(was.Devices, allocatable), !slices.ContainsFunc(was.Devices, groups), !hasLists(was)
	for i := range spec.Devices {
		d := &spec.Devices[i]
		if dropAllocatable {
			d.NodeAllocatableResources = nil
		}
		if dropGroups {
			for j := range d.ConsumesCounters {
				d.ConsumesCounters[j].CompatibilityGroups = nil
			}
		}
		if dropLists {
			for name, a := range d.Attributes {
				if isList(a) {
					a.BoolValues, a.IntValues, a.StringValues, a.VersionValues = nil, nil, nil, nil
					d.Attributes[name] = a
				}
			}
		}
	}
}

// isList reports whether the value of an attribute is a list, even an empty one.
func isList(a resourcev1.DeviceAttribute) bool {
	return a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil
}

// hasLists reports whether a device in the spec has an attribute whose value is a list.
func hasLists(spec *resourcev1.ResourceSliceSpec) bool {
	for _, d := range spec.Devices {
		for _, a := range d.Attributes {
			if isList(a) {
				return true
			}
		}
	}
	return false
}
