package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

// maxDriverName is how long the name of a CSI driver may be.
const maxDriverName = 63

func csiDriver() api.Kind[*storagev1.CSIDriver] {
	doc := storagev1.CSIDriverSpec{}.SwaggerDoc()
	return api.Kind[*storagev1.CSIDriver]{
		Names:   api.Names{Kind: "CSIDriver", Plural: "csidrivers"},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *storagev1.CSIDriver { return &storagev1.CSIDriver{} },
		NewList: func() runtime.Object { return &storagev1.CSIDriverList{} },
		Default: func(d *storagev1.CSIDriver) {
			set(&d.Spec.AttachRequired, true)
			set(&d.Spec.PodInfoOnMount, false)
			set(&d.Spec.StorageCapacity, false)
			set(&d.Spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
			if len(d.Spec.VolumeLifecycleModes) == 0 {
				d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
			}
			set(&d.Spec.RequiresRepublish, false)
			set(&d.Spec.SELinuxMount, false)
		},
		PrepareCreate: func(_ context.Context, d *storagev1.CSIDriver) { d.Generation = 1 },
		Validate: func(_ context.Context, d *storagev1.CSIDriver) field.ErrorList {
			return append(validateDriverName(d.Name, field.NewPath("name")), validateCSIDriver(&d.Spec, field.NewPath("spec"))...)
		},
		Update: api.KindUpdate[*storagev1.CSIDriver]{
			Prepare: func(_ context.Context, d, old *storagev1.CSIDriver) {
				d.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(d.Spec, old.Spec) {
					d.Generation++
				}
			},
			Validate: func(_ context.Context, d, old *storagev1.CSIDriver) field.ErrorList {
				path := field.NewPath("spec")
				errs := validateCSIDriver(&d.Spec, path)
				errs = append(errs, apivalidation.ValidateImmutableField(d.Spec.AttachRequired, old.Spec.AttachRequired, path.Child("attachedRequired"))...)
				return append(errs, apivalidation.ValidateImmutableField(d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes, path.Child("volumeLifecycleModes"))...)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("AttachRequired", "boolean", doc["attachRequired"]),
			api.Column("PodInfoOnMount", "boolean", doc["podInfoOnMount"]),
			api.Column("StorageCapacity", "boolean", doc["storageCapacity"]),
			api.Column("TokenRequests", "string", doc["tokenRequests"]),
			api.Column("RequiresRepublish", "boolean", doc["requiresRepublish"]),
			api.Column("Modes", "string", doc["volumeLifecycleModes"]),
			api.AgeColumn,
		},
		Row: csiDriverRow,
	}
}

func csiDriverRow(d *storagev1.CSIDriver) []any {
	var modes, audiences []string
	for _, m := range d.Spec.VolumeLifecycleModes {
		modes = append(modes, string(m))
	}
	for _, r := range d.Spec.TokenRequests {
		audiences = append(audiences, r.Audience)
	}
	orNone := func(list []string, none string) string {
		if len(list) == 0 {
			return none
		}
		return strings.Join(list, ",")
	}
	attach := d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
	return []any{
		d.Name, attach, value(d.Spec.PodInfoOnMount), value(d.Spec.StorageCapacity), orNone(audiences, "<unset>"),
		value(d.Spec.RequiresRepublish), orNone(modes, "<none>"), api.Age(d.CreationTimestamp),
	}
}

func validateDriverName(name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	if len(name) > maxDriverName {
		errs = append(errs, field.TooLong(path, name, maxDriverName))
	}
	for _, msg := range validation.IsDNS1123Subdomain(strings.ToLower(name)) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return errs
}

func validateCSIDriver(spec *storagev1.CSIDriverSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"attachedRequired", spec.AttachRequired != nil},
		{"podInfoOnMount", spec.PodInfoOnMount != nil},
		{"storageCapacity", spec.StorageCapacity != nil},
		{"seLinuxMount", spec.SELinuxMount != nil},
	} {
		if !f.set {
			errs = append(errs, field.Required(path.Child(f.name), ""))
		}
	}
	policies := []storagev1.FSGroupPolicy{storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy}
	if p := spec.FSGroupPolicy; p != nil && !slices.Contains(policies, *p) {
		errs = append(errs, field.NotSupported(path.Child("fsGroupPolicy"), *p, policies))
	}
	modes := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral, storagev1.VolumeLifecyclePersistent}
	for _, m := range spec.VolumeLifecycleModes {
		if !slices.Contains(modes, m) {
			errs = append(errs, field.NotSupported(path.Child("volumeLifecycleModes"), m, modes))
		}
	}
	const least = int64(10 * time.Minute / time.Second)
	audiences := map[string]bool{}
	for i, r := range spec.TokenRequests {
		at := path.Child("tokenRequests").Index(i)
		if audiences[r.Audience] {
			errs = append(errs, field.Duplicate(at.Child("audience"), r.Audience))
		}
		audiences[r.Audience] = true
		if e := r.ExpirationSeconds; e != nil {
			if *e < least {
				errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *e, "may not specify a duration less than 10 minutes"))
			}
			if *e > 1<<32 {
				errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *e, "may not specify a duration larger than 2^32 seconds"))
			}
		}
	}
	if n := spec.NodeAllocatableUpdatePeriodSeconds; n != nil && *n < 10 {
		errs = append(errs, field.Invalid(path.Child("nodeAllocatableUpdatePeriodSeconds"), *n, fmt.Sprintf("must be greater than or equal to %d seconds", 10)))
	}
	return errs
}
