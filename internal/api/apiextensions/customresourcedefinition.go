package apiextensions

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

type crd = apiextensionsv1.CustomResourceDefinition

func definition() api.Kind[*crd] {
	return api.Kind[*crd]{
		Names: api.Names{
			Kind: "CustomResourceDefinition", Plural: "customresourcedefinitions",
			ShortNames: []string{"crd", "crds"}, Categories: []string{"api-extensions"},
		},
		StoragePath: "apiextensions.k8s.io/customresourcedefinitions",
		Group:       apiextensionsv1.GroupName,
		Version:     "v1",
		New:         func() *crd { return &crd{} },
		NewList:     func() runtime.Object { return &apiextensionsv1.CustomResourceDefinitionList{} },

		StoredJSON:                true,
		ForbidUnconditionalUpdate: true,
		Default:                   func(d *crd) { apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(d) },
		PrepareCreate: func(_ context.Context, d *crd) {
			d.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
			d.Generation = 1
			addStoredVersion(d)
		},
		ReportDuplicates: true,
		AnyFinalizers:    true,
		NameOf: func(d *crd) func(string, bool) []string {
			return func(name string, prefix bool) []string {
				msgs := apivalidation.NameIsDNSSubdomain(name, prefix)
				if name != d.Spec.Names.Plural+"."+d.Spec.Group {
					msgs = append(msgs, `must be spec.names.plural+"."+spec.group`)
				}
				return msgs
			}
		},
		Validate: func(ctx context.Context, d *crd) field.ErrorList {
			return validateInternal(d, func(in *internal.CustomResourceDefinition) field.ErrorList {
				return withoutMetadata(validation.ValidateCustomResourceDefinition(ctx, in))
			})
		},
		Warnings: warnings,
		Update: api.KindUpdate[*crd]{
			Prepare: func(_ context.Context, d, old *crd) {
				d.Status = *old.Status.DeepCopy()
				if !equality.Semantic.DeepEqual(d.Spec, old.Spec) {
					d.Generation = old.Generation + 1
				}
				addStoredVersion(d)
			},
			Validate: func(ctx context.Context, d, old *crd) field.ErrorList {
				return validatedChange(d, old, func(in, before *internal.CustomResourceDefinition) field.ErrorList {
					return withoutMetadata(validation.ValidateCustomResourceDefinitionUpdate(ctx, in, before))
				})
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*crd]{"status": {
			Prepare: func(_ context.Context, d, old *crd) {
				d.Spec = *old.Spec.DeepCopy()
			},
			Validate: func(ctx context.Context, d, old *crd) field.ErrorList {
				return validatedChange(d, old, func(in, before *internal.CustomResourceDefinition) field.ErrorList {
					return withoutMetadata(validation.ValidateUpdateCustomResourceDefinitionStatus(ctx, in, before))
				})
			},
			ResetFields: [][]string{{"spec"}},
		}},
		BeforeDelete: beforeDelete,
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Scope", "string", "Cluster/Namespaced"),
			api.Column("Versions", "string", "Served versions"),
			api.CreatedAtColumns[1],
			api.WideColumn("Group", "string", "API group"),
			api.WideColumn("Kind", "string", "CustomResource kind"),
			api.WideColumn("ShortNames", "string", "Short names"),
			api.WideColumn("Established", "boolean", "Established status"),
		},
		Row: row,
	}
}

// addStoredVersion adds the storage version of the spec to status.storedVersions, the versions that
// objects in etcd may have.
func addStoredVersion(d *crd) {
	for _, v := range d.Spec.Versions {
		if v.Storage {
			if !slices.Contains(d.Status.StoredVersions, v.Name) {
				d.Status.StoredVersions = append(d.Status.StoredVersions, v.Name)
			}
			return
		}
	}
}

// beforeDelete prepares the deletion of a definition: it sets the condition Terminating and a
// finalizer, with which components/apiserver/customresource keeps the definition until it has
// deleted the custom resources. beforeDelete sets the deletion timestamp itself, because, as in
// upstream, this does not increment the generation. It always returns false: there is no grace
// period.
func beforeDelete(_ context.Context, d *crd, _ *metav1.DeleteOptions) bool {
	if d.DeletionTimestamp != nil {
		return false
	}
	now := metav1.Now().Rfc3339Copy()
	d.DeletionTimestamp = &now
	if !apihelpers.CRDHasFinalizer(d, apiextensionsv1.CustomResourceCleanupFinalizer) {
		d.Finalizers = append(d.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer)
	}
	apihelpers.SetCRDCondition(d, apiextensionsv1.CustomResourceDefinitionCondition{
		Type:    apiextensionsv1.Terminating,
		Status:  apiextensionsv1.ConditionTrue,
		Reason:  "InstanceDeletionPending",
		Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
	})
	return false
}

// validateInternal converts a definition to the internal version, which the apiextensions library's validation
// requires, and validates it with check. The internal version has fields that are common to all versions at the top
// level. The paths in the returned errors are those of the internal version.
func validateInternal(d *crd, check func(*internal.CustomResourceDefinition) field.ErrorList) field.ErrorList {
	in, err := toInternal(d)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	dropNonStructural(in)
	return check(in)
}

// dropNonStructural removes the selectable fields of versions whose schema is not structural, because they would make
// the apiextensions library's validation panic. The library rejects such a schema anyway.
func dropNonStructural(in *internal.CustomResourceDefinition) {
	nonStructural := func(fields []internal.SelectableField, schema *internal.CustomResourceValidation) bool {
		if len(fields) == 0 || schema == nil || schema.OpenAPIV3Schema == nil {
			return false
		}
		_, err := structuralschema.NewStructural(schema.OpenAPIV3Schema)
		return err != nil
	}
	if nonStructural(in.Spec.SelectableFields, in.Spec.Validation) {
		in.Spec.SelectableFields = nil
	}
	for i := range in.Spec.Versions {
		if v := &in.Spec.Versions[i]; nonStructural(v.SelectableFields, v.Schema) {
			v.SelectableFields = nil
		}
	}
}

// validatedChange is like validateInternal, for an update: check also gets the stored definition old, converted.
func validatedChange(d, old *crd, check func(in, before *internal.CustomResourceDefinition) field.ErrorList) field.ErrorList {
	before, err := toInternal(old)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return validateInternal(d, func(in *internal.CustomResourceDefinition) field.ErrorList { return check(in, before) })
}

// toInternal converts a definition to the internal version of the apiextensions library. It converts a copy, because
// the apiextensions library's conversion shares memory with its source, and stored definitions belong to the cache.
func toInternal(d *crd) (*internal.CustomResourceDefinition, error) {
	in := &internal.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(d.DeepCopy(), in, nil); err != nil {
		return nil, fmt.Errorf("converting a definition: %w", err)
	}
	return in, nil
}

// approvalField is the field path, in validation errors, of the annotation that links to the API
// review of definitions in the *.k8s.io and *.kubernetes.io groups.
const approvalField = "metadata.annotations[" + apiextensionsv1.KubeAPIApprovedAnnotation + "]"

// withoutMetadata removes the apiextensions library's errors about metadata, because the validation of api.Kind
// reports them already. It keeps errors about the approval annotation.
func withoutMetadata(errs field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		return strings.HasPrefix(e.Field, "metadata.") && e.Field != approvalField
	})
}

// row returns the cells of a definition: among others the served versions and whether it is established.
func row(d *crd) []any {
	var versions []string
	for _, v := range d.Spec.Versions {
		switch {
		case v.Served && v.Storage:
			versions = append(versions, v.Name+"(storage)")
		case v.Served:
			versions = append(versions, v.Name)
		}
	}
	slices.Sort(versions)
	created := api.CreatedAtRow(d)
	return []any{
		d.Name, string(d.Spec.Scope), strings.Join(versions, ","), created[1],
		d.Spec.Group, d.Spec.Names.Kind, strings.Join(d.Spec.Names.ShortNames, ","),
		apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established),
	}
}
