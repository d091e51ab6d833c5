package storage

import (
	"context"
	"reflect"

	storagev1 "k8s.io/api/storage/v1"
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
			return validateAttributes(c)
		},
		Update: api.KindUpdate[*storagev1.VolumeAttributesClass]{
			AsNew: true,
			Changes: func(_ context.Context, c, old *storagev1.VolumeAttributesClass) field.ErrorList {
				var errs field.ErrorList
				if c.DriverName != old.DriverName {
					errs = append(errs, field.Forbidden(field.NewPath("driverName"), "updates to driverName are forbidden."))
				}
				if !reflect.DeepEqual(c.Parameters, old.Parameters) {
					errs = append(errs, field.Forbidden(field.NewPath("parameters"), "updates to parameters are forbidden."))
				}
				return errs
			},
			Validate: func(_ context.Context, c, _ *storagev1.VolumeAttributesClass) field.ErrorList {
				return validateAttributes(c)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("DriverName", "string", storagev1.VolumeAttributesClass{}.SwaggerDoc()["driverName"]),
			api.AgeColumn,
		},
		Row: func(c *storagev1.VolumeAttributesClass) []any {
			return []any{c.Name, c.DriverName, api.Age(c.CreationTimestamp)}
		},
	}
}

func validateAttributes(c *storagev1.VolumeAttributesClass) field.ErrorList {
	errs := validateProvisioner(c.DriverName, field.NewPath("driverName"))
	// Unlike for storage classes, a missing driver name is not checked declaratively.
	for _, e := range errs {
		e.CoveredByDeclarative = false
	}
	return append(errs, validateParameters(c.Parameters, false, field.NewPath("parameters"))...)
}
