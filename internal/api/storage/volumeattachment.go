package storage

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
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
		PrepareCreate: func(_ context.Context, a *storagev1.VolumeAttachment) {
			a.Status = storagev1.VolumeAttachmentStatus{}
		},
		Validate: func(_ context.Context, a *storagev1.VolumeAttachment) field.ErrorList { return validateAttachment(a) },
		Update: api.KindUpdate[*storagev1.VolumeAttachment]{
			Prepare: func(_ context.Context, a, old *storagev1.VolumeAttachment) { old.Status.DeepCopyInto(&a.Status) },
			Validate: func(_ context.Context, a, old *storagev1.VolumeAttachment) field.ErrorList {
				return validateAttachmentUpdate(a, old)
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*storagev1.VolumeAttachment]{
			"status": {
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
			return []any{a.Name, a.Spec.Attacher, value(a.Spec.Source.PersistentVolumeName), a.Spec.NodeName, a.Status.Attached, api.Age(a.CreationTimestamp)}
		},
	}
}

func validateAttachmentUpdate(a, old *storagev1.VolumeAttachment) field.ErrorList {
	errs := validateAttachment(a)
	if !apiequality.Semantic.DeepEqual(a.Spec, old.Spec) {
		errs = append(errs, field.Invalid(field.NewPath("spec"), a.Spec, "field is immutable"))
	}
	return errs
}

func validateAttachment(a *storagev1.VolumeAttachment) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateProvisioner(a.Spec.Attacher, path.Child("attacher"))
	source := path.Child("source")
	switch s := &a.Spec.Source; {
	case s.InlineVolumeSpec == nil && value(s.PersistentVolumeName) == "":
		if s.PersistentVolumeName == nil {
			errs = append(errs, field.Required(source, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
		} else {
			errs = append(errs, field.Required(source.Child("persistentVolumeName"), "must specify non empty persistentVolumeName"))
		}
	case s.InlineVolumeSpec != nil && s.PersistentVolumeName != nil:
		errs = append(errs, field.Forbidden(source, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case s.PersistentVolumeName != nil:
		for _, msg := range apivalidation.NameIsDNSSubdomain(*s.PersistentVolumeName, false) {
			errs = append(errs, field.Invalid(source.Child("persistentVolumeName"), *s.PersistentVolumeName, msg))
		}
	}
	for _, msg := range apivalidation.NameIsDNSSubdomain(a.Spec.NodeName, false) {
		errs = append(errs, field.Invalid(path.Child("nodeName"), a.Spec.NodeName, msg))
	}
	status := field.NewPath("status")
	size := 0
	for k, v := range a.Status.AttachmentMetadata {
		size += len(k) + len(v)
	}
	if size > maxAttachMetadata {
		errs = append(errs, field.TooLong(status.Child("attachmentMetadata"), "", maxAttachMetadata))
	}
	for name, e := range map[string]*storagev1.VolumeError{"attachError": a.Status.AttachError, "detachError": a.Status.DetachError} {
		if e != nil && len(e.Message) > maxAttachError {
			errs = append(errs, field.TooLong(status.Child(name, "message"), "", maxAttachError))
		}
	}
	return errs
}
