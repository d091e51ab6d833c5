package storage

import (
	"context"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

func csiStorageCapacity() api.Kind[*storagev1.CSIStorageCapacity] {
	return api.Kind[*storagev1.CSIStorageCapacity]{
		Names:   api.Names{Kind: "CSIStorageCapacity", ListKind: "CSIStorageCapacityList", Plural: "csistoragecapacities"},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *storagev1.CSIStorageCapacity { return &storagev1.CSIStorageCapacity{} },
		NewList: func() runtime.Object { return &storagev1.CSIStorageCapacityList{} },
		Validate: func(_ context.Context, c *storagev1.CSIStorageCapacity) field.ErrorList {
			return validateCapacity(c, nil)
		},
		ForbidUnconditionalUpdate: true,
		Update: api.KindUpdate[*storagev1.CSIStorageCapacity]{
			AsNew: true, NewFirst: true,
			Validate: func(_ context.Context, c, old *storagev1.CSIStorageCapacity) field.ErrorList {
				errs := validateCapacity(c, old.NodeTopology)
				errs = append(errs, apivalidation.ValidateImmutableField(c.NodeTopology, old.NodeTopology, field.NewPath("nodeTopology"))...)
				return append(errs, apivalidation.ValidateImmutableField(c.StorageClassName, old.StorageClassName, field.NewPath("storageClassName"))...)
			},
		},
		Columns: []metav1.TableColumnDefinition{api.NameColumn, api.CreatedColumn},
		Row: func(c *storagev1.CSIStorageCapacity) []any {
			return []any{c.Name, c.CreationTimestamp.UTC().Format(time.RFC3339)}
		},
	}
}

// validateCapacity validates a CSIStorageCapacity. stored is the topology selector of the stored
// object, whose invalid label values remain valid, or nil on create.
func validateCapacity(c *storagev1.CSIStorageCapacity, stored *metav1.LabelSelector) field.ErrorList {
	var errs validate.Errors
	errs.Add(metav1validation.ValidateLabelSelector(c.NodeTopology, validate.SelectorOptions(stored), field.NewPath("nodeTopology")))
	errs.InvalidAll(field.NewPath("storageClassName"), c.StorageClassName, apivalidation.NameIsDNSSubdomain(c.StorageClassName, false))
	if c.Capacity != nil {
		errs.NonNegativeQuantity(field.NewPath("capacity"), *c.Capacity)
	}
	return errs.List
}
