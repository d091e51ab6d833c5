package admissionregistration

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func mutatingAdmissionPolicyBinding() api.Kind[*admissionv1.MutatingAdmissionPolicyBinding] {
	type binding = admissionv1.MutatingAdmissionPolicyBinding
	validate := func(b *binding) field.ErrorList {
		path := field.NewPath("spec")
		return append(validateReferences(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, path),
			validateMutable(b.Spec.MatchResources, path.Child("matchResources"))...)
	}
	return api.Kind[*binding]{
		Names:   api.Names{Kind: "MutatingAdmissionPolicyBinding", Plural: "mutatingadmissionpolicybindings", Categories: []string{"api-extensions"}},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *binding { return &binding{} },
		NewList: func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyBindingList{} },

		AnyFinalizers: true,
		Default: func(b *binding) {
			defaultMatchResources(b.Spec.MatchResources)
		},
		PrepareCreate:             firstGeneration[*binding],
		Validate:                  func(_ context.Context, b *binding) field.ErrorList { return append(validate(b), notStatic(b.Name)...) },
		ForbidUnconditionalUpdate: true,
		Update: api.KindUpdate[*binding]{
			AsNew: true,
			Prepare: func(_ context.Context, b, old *binding) {
				prepareGeneration(b, old, apiequality.Semantic.DeepEqual(b.Spec, old.Spec))
			},
			Validate: func(_ context.Context, b, _ *binding) field.ErrorList { return validate(b) },
		},
		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			api.Column("PolicyName", "string", "PolicyName indicates the policy definition which the policy binding binded to"),
			api.Column("ParamRef", "string", "ParamRef indicates the param resource which sets the configuration param"),
			ageColumn,
		},
		Row: func(b *binding) []any {
			return []any{b.Name, b.Spec.PolicyName, paramRefCell(b.Spec.ParamRef), api.Age(b.CreationTimestamp)}
		},
	}
}
