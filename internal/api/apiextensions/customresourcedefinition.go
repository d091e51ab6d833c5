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
			noteStoredVersion(d)
		},
		Repeats:       true,
		AnyFinalizers: true,
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
			return validated(d, func(in *internal.CustomResourceDefinition) field.ErrorList {
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
				noteStoredVersion(d)
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

// noteStoredVersion adds the storage version to those that objects may be
// stored in.
func noteStoredVersion(d *crd) {
	for _, v := range d.Spec.Versions {
		if v.Storage {
			if !slices.Contains(d.Status.StoredVersions, v.Name) {
				d.Status.StoredVersions = append(d.Status.StoredVersions, v.Name)
			}
			return
		}
	}
}

// beforeDelete keeps a definition for as long as there are instances of it;
// they are deleted by components/apiserver/customresource. It marks it by
// itself, for that is no new generation of it, as upstream has it.
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

// validated checks the internal form of a definition, which is what the
// library's validation knows. That form has what all versions have in common
// at its top, which the paths in errors show.
func validated(d *crd, check func(*internal.CustomResourceDefinition) field.ErrorList) field.ErrorList {
	in, err := toInternal(d)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	withoutUnfit(in)
	return check(in)
}

// withoutUnfit leaves out selectable fields where there is no schema to look
// them up in: the library's validation would not survive them, and refuses such
// a schema anyhow.
func withoutUnfit(in *internal.CustomResourceDefinition) {
	unfit := func(fields []internal.SelectableField, schema *internal.CustomResourceValidation) bool {
		if len(fields) == 0 || schema == nil || schema.OpenAPIV3Schema == nil {
			return false
		}
		_, err := structuralschema.NewStructural(schema.OpenAPIV3Schema)
		return err != nil
	}
	if unfit(in.Spec.SelectableFields, in.Spec.Validation) {
		in.Spec.SelectableFields = nil
	}
	for i := range in.Spec.Versions {
		if v := &in.Spec.Versions[i]; unfit(v.SelectableFields, v.Schema) {
			v.SelectableFields = nil
		}
	}
}

func validatedChange(d, old *crd, check func(in, before *internal.CustomResourceDefinition) field.ErrorList) field.ErrorList {
	before, err := toInternal(old)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return validated(d, func(in *internal.CustomResourceDefinition) field.ErrorList { return check(in, before) })
}

// toInternal converts a copy: the library's conversion shares what it can with
// its source, and old definitions belong to the cache.
func toInternal(d *crd) (*internal.CustomResourceDefinition, error) {
	in := &internal.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(d.DeepCopy(), in, nil); err != nil {
		return nil, fmt.Errorf("converting a definition: %w", err)
	}
	return in, nil
}

// approvalField is where definitions in groups of the Kubernetes community say
// who agreed to them.
const approvalField = "metadata.annotations[" + apiextensionsv1.KubeAPIApprovedAnnotation + "]"

// withoutMetadata leaves out what api.Kind has found already: errors of the
// metadata but those of the approval.
func withoutMetadata(errs field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		return strings.HasPrefix(e.Field, "metadata.") && e.Field != approvalField
	})
}

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
