package resource

import (
	"context"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

func resourceClaim() api.Kind[*resourcev1.ResourceClaim] {
	return api.Kind[*resourcev1.ResourceClaim]{
		Names:   api.Names{Kind: "ResourceClaim", Plural: "resourceclaims"},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *resourcev1.ResourceClaim { return &resourcev1.ResourceClaim{} },
		NewList: func() runtime.Object { return &resourcev1.ResourceClaimList{} },

		Default: func(c *resourcev1.ResourceClaim) {
			defaultClaim(&c.Spec)
			if a := c.Status.Allocation; a != nil {
				for i := range a.Devices.Results {
					defaultTolerations(a.Devices.Results[i].Tolerations)
				}
			}
		},
		PrepareCreate: func(_ context.Context, c *resourcev1.ResourceClaim) {
			c.Status = resourcev1.ResourceClaimStatus{}
			dropClaim(&c.Spec, nil)
		},
		Validate: func(ctx context.Context, c *resourcev1.ResourceClaim) field.ErrorList {
			var e checker
			e.claim(&c.Spec.Devices, field.NewPath("spec", "devices"))
			e.Add(declared(ctx, resourcev1.Validate_ResourceClaimSpec, field.NewPath("spec"), &c.Spec, nil))
			return e.List
		},
		Update: api.KindUpdate[*resourcev1.ResourceClaim]{
			AsNew: true, NewFirst: true,
			Prepare: func(_ context.Context, c, old *resourcev1.ResourceClaim) {
				old.Status.DeepCopyInto(&c.Status)
				dropClaim(&c.Spec, &old.Spec)
			},
			Validate: func(_ context.Context, c, old *resourcev1.ResourceClaim) field.ErrorList {
				var e validate.Errors
				validate.Unchanged(&e, field.NewPath("spec"), c.Spec, old.Spec)
				return e.List
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*resourcev1.ResourceClaim]{
			"status": {
				Prepare: func(_ context.Context, c, old *resourcev1.ResourceClaim) {
					old.Spec.DeepCopyInto(&c.Spec)
					metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
					dropFreedDevices(c, old)
					dropSkipNodeOperations(c, old)
				},
				Validate:    checkClaimStatus,
				ResetFields: [][]string{{"metadata"}, {"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("State", "string", "A summary of the current state (allocated, pending, reserved, etc.)."),
			api.AgeColumn,
		},
		Row: func(c *resourcev1.ResourceClaim) []any {
			return []any{c.Name, claimState(c), api.Age(c.CreationTimestamp)}
		},
	}
}

// claimState returns the state of a claim for the table, such as "allocated,reserved" or "pending".
func claimState(c *resourcev1.ResourceClaim) string {
	var states []string
	if c.DeletionTimestamp != nil {
		states = append(states, "deleted")
	}
	switch {
	case c.Status.Allocation == nil:
		if c.DeletionTimestamp == nil {
			states = append(states, "pending")
		}
	case len(c.Status.ReservedFor) > 0:
		states = append(states, "allocated", "reserved")
	default:
		states = append(states, "allocated")
	}
	return strings.Join(states, ",")
}

// device identifies a device of a ResourceSlice by its driver, pool and name or, if share is set, a
// share of a device that can be allocated multiple times.
type device struct{ driver, pool, name, share string }

// forError returns the device as a value with the field names that upstream's error messages show.
func (d device) forError() any {
	out := struct {
		Driver, Pool, Device, ShareID string
	}{d.driver, d.pool, d.name, d.share}
	return out
}

// deviceOf returns the device to which an entry of a claim's status.devices belongs.
func deviceOf(s *resourcev1.AllocatedDeviceStatus) device {
	d := device{driver: s.Driver, pool: s.Pool, name: s.Device}
	if s.ShareID != nil {
		d.share = *s.ShareID
	}
	return d
}

// allocated returns the devices that are allocated to a claim.
func allocated(c *resourcev1.ResourceClaim) []device {
	if c.Status.Allocation == nil {
		return nil
	}
	var all []device
	for _, r := range c.Status.Allocation.Devices.Results {
		d := device{driver: r.Driver, pool: r.Pool, name: r.Device}
		if r.ShareID != nil {
			d.share = string(*r.ShareID)
		}
		all = append(all, d)
	}
	return all
}

// dropFreedDevices removes the entries in status.devices whose devices are allocated in old but not
// in c anymore.
func dropFreedDevices(c, old *resourcev1.ResourceClaim) {
	is := allocated(c)
	var freed []device
	for _, d := range allocated(old) {
		if !slices.Contains(is, d) {
			freed = append(freed, d)
		}
	}
	c.Status.Devices = slices.DeleteFunc(c.Status.Devices, func(s resourcev1.AllocatedDeviceStatus) bool {
		return slices.Contains(freed, deviceOf(&s))
	})
	if len(c.Status.Devices) == 0 {
		c.Status.Devices = nil
	}
}

// dropSkipNodeOperations clears skipNodeOperations, fields of a disabled feature, in the allocation
// of c, unless that of the stored claim old has them.
func dropSkipNodeOperations(c, old *resourcev1.ResourceClaim) {
	skips := func(c *resourcev1.ResourceClaim) bool {
		return c.Status.Allocation != nil && slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
			return len(r.SkipNodeOperations) > 0
		})
	}
	if !skips(c) || skips(old) {
		return
	}
	for i := range c.Status.Allocation.Devices.Results {
		c.Status.Allocation.Devices.Results[i].SkipNodeOperations = nil
	}
}
