package storage

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	storagev1beta1 "k8s.io/api/storage/v1beta1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func volumeAttributesClass() api.Kind[*storagev1.VolumeAttributesClass] {
	return api.Kind[*storagev1.VolumeAttributesClass]{
		Names:   api.Names{Kind: "VolumeAttributesClass", Plural: "volumeattributesclasses", ShortNames: []string{"vac"}},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *storagev1.VolumeAttributesClass { return &storagev1.VolumeAttributesClass{} },
		NewList: func() runtime.Object { return &storagev1.VolumeAttributesClassList{} },
		Validate: func(_ context.Context, c *storagev1.VolumeAttributesClass) field.ErrorList {
			return append(validateProvisioner(c.DriverName, field.NewPath("driverName")),
				validateParameters(c.Parameters, false, field.NewPath("parameters"))...)
		},
		Update: api.KindUpdate[*storagev1.VolumeAttributesClass]{
			Validate: func(_ context.Context, c, old *storagev1.VolumeAttributesClass) field.ErrorList {
				return append(apivalidation.ValidateImmutableField(c.DriverName, old.DriverName, field.NewPath("driverName")),
					apivalidation.ValidateImmutableField(c.Parameters, old.Parameters, field.NewPath("parameters"))...)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("DriverName", "string", storagev1beta1.VolumeAttributesClass{}.SwaggerDoc()["driverName"]),
			api.AgeColumn,
		},
		Row: func(c *storagev1.VolumeAttributesClass) []any {
			name := c.Name
			if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
				name += " (default)"
			}
			return []any{name, c.DriverName, api.Age(c.CreationTimestamp)}
		},
	}
}
