package storage

import (
	"context"
	"math"

	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/volume"
	"hyperkube/internal/api/validate"
)

const (
	maxAttachError    = 1024 // bytes
	maxAttachMetadata = 256 << 10
)

func volumeAttachment() api.Kind[*storagev1.VolumeAttachment] {
	name := api.Column("Attacher", "string", storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["attacher"])
	name.Format = "name"
	return api.Kind[*storagev1.VolumeAttachment]{
		Names:   api.Names{Kind: "VolumeAttachment", Plural: "volumeattachments"},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *storagev1.VolumeAttachment { return &storagev1.VolumeAttachment{} },
		NewList: func() runtime.Object { return &storagev1.VolumeAttachmentList{} },
		Default: func(a *storagev1.VolumeAttachment) {
			if spec := a.Spec.Source.InlineVolumeSpec; spec != nil {
				volume.DefaultInlineSpec(spec)
			}
		},
		PrepareCreate: func(_ context.Context, a *storagev1.VolumeAttachment) {
			a.Status = storagev1.VolumeAttachmentStatus{}
		},
		Validate: func(_ context.Context, a *storagev1.VolumeAttachment) field.ErrorList {
			return validateAttachment(a, true)
		},
		ForbidUnconditionalUpdate: true,
		Update: api.KindUpdate[*storagev1.VolumeAttachment]{
			AsNew: true, NewFirst: true,
			Prepare: func(_ context.Context, a, old *storagev1.VolumeAttachment) { old.Status.DeepCopyInto(&a.Status) },
			Validate: func(_ context.Context, a, old *storagev1.VolumeAttachment) field.ErrorList {
				return validateAttachmentUpdate(a, old)
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*storagev1.VolumeAttachment]{
			"status": {
				AsNew: true,
				Prepare: func(_ context.Context, a, old *storagev1.VolumeAttachment) {
					old.Spec.DeepCopyInto(&a.Spec)
					metav1.ResetObjectMetaForStatus(&a.ObjectMeta, &old.ObjectMeta)
				},
				Validate: func(_ context.Context, a, old *storagev1.VolumeAttachment) field.ErrorList {
					return validateAttachmentUpdate(a, old)
				},
				ResetFields: [][]string{{"metadata"}, {"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			name,
			api.Column("PV", "string", storagev1.VolumeAttachmentSource{}.SwaggerDoc()["persistentVolumeName"]),
			api.Column("Node", "string", storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["nodeName"]),
			api.Column("Attached", "boolean", storagev1.VolumeAttachmentStatus{}.SwaggerDoc()["attached"]),
			api.AgeColumn,
		},
		Row: func(a *storagev1.VolumeAttachment) []any {
			return []any{a.Name, a.Spec.Attacher, api.ValueOf(a.Spec.Source.PersistentVolumeName), a.Spec.NodeName, a.Status.Attached, api.Age(a.CreationTimestamp)}
		},
	}
}

// validateAttachmentUpdate validates an update of a VolumeAttachment, whose spec must not change.
func validateAttachmentUpdate(a, old *storagev1.VolumeAttachment) field.ErrorList {
	changed := !apiequality.Semantic.DeepEqual(a.Spec, old.Spec)
	errs := validate.Errors{List: validateAttachment(a, !changed)}
	if changed {
		errs.Immutable(field.NewPath("spec"))
	}
	return errs.List
}

// validateAttachment validates a VolumeAttachment. declared is false if an update has changed the
// immutable spec; as in upstream, the attacher is then validated with other messages.
func validateAttachment(a *storagev1.VolumeAttachment, declared bool) field.ErrorList {
	var errs validate.Errors
	path := field.NewPath("spec")
	if declared {
		declaredAttacher(&errs, a.Spec.Attacher, path.Child("attacher"))
	} else {
		errs.Add(validateDriverName(a.Spec.Attacher, path.Child("attacher")))
	}
	source := path.Child("source")
	switch s := &a.Spec.Source; {
	case s.InlineVolumeSpec == nil && s.PersistentVolumeName == nil:
		errs.Required(source, "must specify exactly one of inlineVolumeSpec and persistentVolumeName")
	case s.InlineVolumeSpec != nil && s.PersistentVolumeName != nil:
		errs.Forbidden(source, "must specify exactly one of inlineVolumeSpec and persistentVolumeName")
	case s.InlineVolumeSpec != nil:
		volume.InlineSpec(&errs, s.InlineVolumeSpec, source.Child("inlineVolumeSpec"))
	case *s.PersistentVolumeName == "":
		errs.Required(source.Child("persistentVolumeName"), "must specify non empty persistentVolumeName")
	}
	errs.InvalidAll(path.Child("nodeName"), a.Spec.NodeName, apivalidation.NameIsDNSSubdomain(a.Spec.NodeName, false))
	status := field.NewPath("status")
	size := 0
	for k, v := range a.Status.AttachmentMetadata {
		size += len(k) + len(v)
	}
	if size > maxAttachMetadata {
		errs.Add(field.ErrorList{field.TooLong(status.Child("attachmentMetadata"), "", maxAttachMetadata)})
	}
	validateVolumeError(&errs, a.Status.AttachError, status.Child("attachError"))
	validateVolumeError(&errs, a.Status.DetachError, status.Child("detachError"))
	if name := a.Spec.Source.PersistentVolumeName; name != nil {
		errs.InvalidAll(field.NewPath("spec.source.persistentVolumeName"), *name, apivalidation.NameIsDNSSubdomain(*name, false))
	}
	return errs.List
}

// declaredAttacher validates the name of an attacher as upstream's declarative validation does.
func declaredAttacher(e *validate.Errors, attacher string, path *field.Path) {
	if attacher == "" {
		e.Declared(field.Required(path, ""))
		return
	}
	for _, msg := range content.IsDNS1123SubdomainCaseless(attacher) {
		e.Declared(field.Invalid(path, attacher, msg).WithOrigin("format=k8s-long-name-caseless"))
	}
	if len(attacher) > maxDriverName {
		e.Declared(field.TooLongCharacters(path, attacher, maxDriverName).WithOrigin("maxLength"))
	}
}

func validateVolumeError(e *validate.Errors, v *storagev1.VolumeError, path *field.Path) {
	if v == nil {
		return
	}
	if len(v.Message) > maxAttachError {
		e.Add(field.ErrorList{field.TooLong(path.Child("message"), "", maxAttachError)})
	}
	if c := v.ErrorCode; c != nil && *c < 0 {
		e.Invalid(path.Child("errorCode"), *c, validation.InclusiveRangeError(0, math.MaxInt32))
	}
}
