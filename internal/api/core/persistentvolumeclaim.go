package core

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/volume"
	"hyperkube/internal/api/validate"
)

func persistentVolumeClaim() api.Kind[*corev1.PersistentVolumeClaim] {
	spec, status := corev1.PersistentVolumeClaimSpec{}.SwaggerDoc(), corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()
	return api.Kind[*corev1.PersistentVolumeClaim]{
		Names: api.Names{
			Kind:       "PersistentVolumeClaim",
			Plural:     "persistentvolumeclaims",
			ShortNames: []string{"pvc"},
		},
		Version: "v1",
		Scope:   api.Namespaced,
		New:     func() *corev1.PersistentVolumeClaim { return &corev1.PersistentVolumeClaim{} },
		NewList: func() runtime.Object { return &corev1.PersistentVolumeClaimList{} },
		Default: func(c *corev1.PersistentVolumeClaim) {
			if c.Status.Phase == "" {
				c.Status.Phase = corev1.ClaimPending
			}
			volume.DefaultClaimSpec(&c.Spec)
			validate.RoundUp(c.Status.Capacity)
			validate.RoundUp(c.Status.AllocatedResources)
		},
		// Servers before v1.22 only had dataSource.
		Adopt: func(c *corev1.PersistentVolumeClaim) { volume.NormalizeDataSources(&c.Spec) },
		PrepareCreate: func(_ context.Context, c *corev1.PersistentVolumeClaim) {
			c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
			volume.PrepareDataSources(&c.Spec, nil)
		},
		Validate: func(_ context.Context, c *corev1.PersistentVolumeClaim) field.ErrorList {
			return validateClaim(c)
		},
		Warnings: func(_ context.Context, c, _ *corev1.PersistentVolumeClaim) []string {
			var out []string
			if _, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
				out = append(out, fmt.Sprintf("%s: deprecated since v1.8; use \"storageClassName\" attribute instead",
					field.NewPath("metadata", "annotations").Key(corev1.BetaStorageClassAnnotation)))
			}
			return append(out, volume.ClaimSpecWarnings(&c.Spec, field.NewPath("spec", "resources"))...)
		},
		Update: api.KindUpdate[*corev1.PersistentVolumeClaim]{
			AsNew: true,
			Prepare: func(_ context.Context, c, old *corev1.PersistentVolumeClaim) {
				old.Status.DeepCopyInto(&c.Status)
				volume.PrepareDataSources(&c.Spec, &old.Spec)
			},
			Validate:    validateClaimUpdate,
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*corev1.PersistentVolumeClaim]{
			"status": {
				Prepare: func(_ context.Context, c, old *corev1.PersistentVolumeClaim) {
					old.Spec.DeepCopyInto(&c.Spec)
					// The feature gate CSIVolumeHealth is disabled.
					if old.Status.HealthStatus == nil {
						c.Status.HealthStatus = nil
					}
				},
				Validate:    validateClaimStatus,
				ResetFields: [][]string{{"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Status", "string", status["phase"]),
			api.Column("Volume", "string", spec["volumeName"]),
			api.Column("Capacity", "string", status["capacity"]),
			api.Column("Access Modes", "string", status["accessModes"]),
			api.Column("StorageClass", "string", "StorageClass of the pvc"),
			api.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pvc"),
			api.AgeColumn,
			api.WideColumn("VolumeMode", "string", spec["volumeMode"]),
		},
		Row: claimRow,
	}
}

func validateClaim(c *corev1.PersistentVolumeClaim) field.ErrorList {
	e := &validate.Errors{}
	volume.ClaimSpec(e, &c.Spec, field.NewPath("spec"))
	return e.List
}

// validateClaimUpdate validates an update of a claim itself. The spec is immutable, except for
// changes that bind the claim to a volume, set the storage class from the deprecated annotation,
// expand a bound claim, or change its volume attributes class.
func validateClaimUpdate(_ context.Context, c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	e, path := &validate.Errors{}, field.NewPath("spec")
	e.Add(validateClaim(c))
	is, was := c.Spec.DeepCopy(), old.Spec.DeepCopy()
	if was.VolumeName == "" {
		was.VolumeName = is.VolumeName
	}
	keepStorageClass(e, c, old, is)
	if c.Status.Phase == corev1.ClaimBound {
		if is.Resources.Requests != nil {
			is.Resources.Requests[corev1.ResourceStorage] = old.Spec.Resources.Requests[corev1.ResourceStorage]
		}
		is.VolumeAttributesClassName = was.VolumeAttributesClassName
	}
	if !apiequality.Semantic.DeepEqual(is, was) {
		e.Forbidden(path, fmt.Sprintf("spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n%v", validate.Diff(was, is)))
	}
	size, before, real := c.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage], old.Status.Capacity[corev1.ResourceStorage]
	if size.Cmp(before) < 0 && size.Cmp(real) <= 0 {
		// A failed expansion can be canceled, but a volume cannot be shrunk.
		e.Forbidden(path.Child("resources", "requests", "storage"), "field can not be less than status.capacity")
	}
	e.Add(apivalidation.ValidateImmutableField(c.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode")))
	// A volume attributes class that was applied can be changed but not removed.
	if class, had := c.Spec.VolumeAttributesClassName, old.Spec.VolumeAttributesClassName; old.Status.CurrentVolumeAttributesClassName != nil && !apiequality.Semantic.DeepEqual(class, had) {
		switch {
		case class == nil:
			e.Forbidden(path.Child("volumeAttributesClassName"), "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil")
		case *class == "":
			e.Forbidden(path.Child("volumeAttributesClassName"), "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil")
		}
	}
	return e.List
}

// keepStorageClass validates a change of a claim's storage class, in the spec or in the deprecated
// annotation. The spec may be set if it had no storage class and equals the annotation, or if there
// was no annotation; keepStorageClass then clears the class in is, the copy of the spec that the
// caller compares with the stored spec.
func keepStorageClass(e *validate.Errors, c, old *corev1.PersistentVolumeClaim, is *corev1.PersistentVolumeClaimSpec) {
	const key = corev1.BetaStorageClassAnnotation
	was, had := old.Annotations[key]
	now, has := c.Annotations[key]
	set := old.Spec.StorageClassName == nil && c.Spec.StorageClassName != nil
	if set && had && *c.Spec.StorageClassName == was && (!has || now == was) {
		is.StorageClassName = nil
		return
	}
	if now != was {
		e.Invalid(field.NewPath("metadata", "annotations", key), now, apivalidation.FieldImmutableErrorMsg)
	}
	if set && (!had || *c.Spec.StorageClassName == was) {
		is.StorageClassName = nil
	}
}

// validateClaimStatus validates the status of a PersistentVolumeClaim: its quantities, and the resources and states of
// a resize. The stored object is not used.
func validateClaimStatus(_ context.Context, c, _ *corev1.PersistentVolumeClaim) field.ErrorList {
	e, path := &validate.Errors{}, field.NewPath("status")
	if len(c.Spec.AccessModes) == 0 {
		e.Required(field.NewPath("Spec", "accessModes"), "")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Status.Capacity)) {
		e.BasicQuantity(path.Child("capacity").Key(string(name)), c.Status.Capacity[name])
	}
	for _, name := range slices.Sorted(maps.Keys(c.Status.AllocatedResourceStatuses)) {
		at := path.Child("allocatedResourceStatuses")
		claimResource(e, name, at)
		switch c.Status.AllocatedResourceStatuses[name] {
		case corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
			corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress,
			corev1.PersistentVolumeClaimNodeResizeInfeasible:
		default:
			e.Add(field.ErrorList{field.NotSupported(at, name, []corev1.ClaimResourceStatus{
				corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
				corev1.PersistentVolumeClaimNodeResizeInProgress, corev1.PersistentVolumeClaimNodeResizeInfeasible,
				corev1.PersistentVolumeClaimNodeResizePending,
			})})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Status.AllocatedResources)) {
		at := path.Child("allocatedResources")
		if claimResource(e, name, at) {
			e.BasicQuantity(at.Key(string(name)), c.Status.AllocatedResources[name])
		}
	}
	return e.List
}

// claimResource validates the name of an allocated resource in a claim's status: storage or a name
// with a domain. It reports whether the name is valid.
func claimResource(e *validate.Errors, name corev1.ResourceName, at *field.Path) bool {
	before := len(e.List)
	e.InvalidAll(at, string(name), validation.IsQualifiedName(string(name)))
	if len(e.List) == before && validate.IsNative(name) && name != corev1.ResourceStorage {
		validate.OneOf(e, at, name, corev1.ResourceStorage)
	}
	return len(e.List) == before
}

// claimRow returns the cells of a claim. Without a volume, capacity and access modes are empty.
func claimRow(c *corev1.PersistentVolumeClaim) []any {
	phase, capacity, modes := string(c.Status.Phase), "", ""
	if c.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if c.Spec.VolumeName != "" {
		size := c.Status.Capacity[corev1.ResourceStorage]
		capacity, modes = size.String(), formatAccessModes(c.Status.AccessModes)
	}
	class, ok := c.Annotations[corev1.BetaStorageClassAnnotation]
	if !ok && c.Spec.StorageClassName != nil {
		class = *c.Spec.StorageClassName
	}
	return []any{
		c.Name, phase, c.Spec.VolumeName, capacity, modes, class,
		orUnset(c.Spec.VolumeAttributesClassName), api.Age(c.CreationTimestamp), orUnset(c.Spec.VolumeMode),
	}
}
