package storage

import (
	"context"
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

// maxDriverName is the maximum length of a CSI driver name.
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
			api.SetDefault(&d.Spec.AttachRequired, true)
			api.SetDefault(&d.Spec.PodInfoOnMount, false)
			api.SetDefault(&d.Spec.StorageCapacity, false)
			api.SetDefault(&d.Spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
			if len(d.Spec.VolumeLifecycleModes) == 0 {
				d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
			}
			api.SetDefault(&d.Spec.RequiresRepublish, false)
			api.SetDefault(&d.Spec.SELinuxMount, false)
			api.SetDefault(&d.Spec.PreventPodSchedulingIfMissing, false)
		},
		Validate: func(_ context.Context, d *storagev1.CSIDriver) field.ErrorList {
			return validateCSIDriver(&d.Spec, field.NewPath("spec"))
		},
		Warnings: func(_ context.Context, d, old *storagev1.CSIDriver) []string {
			if old != nil && apiequality.Semantic.DeepEqual(d.Spec.TokenRequests, old.Spec.TokenRequests) {
				return nil
			}
			if len(d.Spec.TokenRequests) > 0 && d.Spec.ServiceAccountTokenInSecrets == nil {
				return []string{tokensInSecrets}
			}
			return nil
		},
		ForbidUnconditionalUpdate: true,
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

// tokensInSecrets is the warning for a driver that requests service account tokens without
// specifying whether they are passed as secrets.
const tokensInSecrets = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"

// csiDriverRow returns the cells of a CSIDriver.
func csiDriverRow(d *storagev1.CSIDriver) []any {
	var modes []string
	for _, m := range d.Spec.VolumeLifecycleModes {
		modes = append(modes, string(m))
	}
	requests := "<unset>"
	if d.Spec.TokenRequests != nil {
		var audiences []string
		for _, r := range d.Spec.TokenRequests {
			audiences = append(audiences, r.Audience)
		}
		requests = strings.Join(audiences, ",")
	}
	orNone := func(list []string, none string) string {
		if len(list) == 0 {
			return none
		}
		return strings.Join(list, ",")
	}
	attach := d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
	return []any{
		d.Name, attach, api.ValueOf(d.Spec.PodInfoOnMount), api.ValueOf(d.Spec.StorageCapacity), requests,
		api.ValueOf(d.Spec.RequiresRepublish), orNone(modes, "<none>"), api.Age(d.CreationTimestamp),
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
	required := func(name string, set bool) {
		if !set {
			errs = append(errs, field.Required(path.Child(name), ""))
		}
	}
	required("attachedRequired", spec.AttachRequired != nil)
	required("podInfoOnMount", spec.PodInfoOnMount != nil)
	required("storageCapacity", spec.StorageCapacity != nil)
	policies := []storagev1.FSGroupPolicy{storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy}
	if p := spec.FSGroupPolicy; p != nil && !slices.Contains(policies, *p) {
		errs = append(errs, field.NotSupported(path.Child("fsGroupPolicy"), *p, policies))
	}
	errs = append(errs, validateTokenRequests(spec.TokenRequests, path.Child("tokenRequests"))...)
	modes := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	for _, m := range spec.VolumeLifecycleModes {
		if !slices.Contains(modes, m) {
			errs = append(errs, field.NotSupported(path.Child("volumeLifecycleModes"), m, modes))
		}
	}
	required("seLinuxMount", spec.SELinuxMount != nil)
	if n := spec.NodeAllocatableUpdatePeriodSeconds; n != nil && *n < 10 {
		errs = append(errs, field.Invalid(path.Child("nodeAllocatableUpdatePeriodSeconds"), *n, "must be greater than or equal to 10 seconds"))
	}
	if in := spec.ServiceAccountTokenInSecrets; in != nil && len(spec.TokenRequests) == 0 {
		errs = append(errs, field.Invalid(path.Child("serviceAccountTokenInSecrets"), *in, "serviceAccountTokenInSecrets is set but no tokenRequests are specified"))
	}
	required("preventPodSchedulingIfMissing", spec.PreventPodSchedulingIfMissing != nil)
	return errs
}

func validateTokenRequests(requests []storagev1.TokenRequest, path *field.Path) field.ErrorList {
	const least = int64(10 * time.Minute / time.Second)
	var errs field.ErrorList
	audiences := map[string]bool{}
	for i, r := range requests {
		at := path.Index(i)
		if audiences[r.Audience] {
			errs = append(errs, field.Duplicate(at.Child("audience"), r.Audience))
			continue
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
	return errs
}
