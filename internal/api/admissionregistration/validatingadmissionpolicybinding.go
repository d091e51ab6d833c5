package admissionregistration

import (
	"cmp"
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func validatingAdmissionPolicyBinding() api.Kind[*admissionv1.ValidatingAdmissionPolicyBinding] {
	type binding = admissionv1.ValidatingAdmissionPolicyBinding
	validate := func(b *binding) field.ErrorList {
		path := field.NewPath("spec")
		errs := validateReferences(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, path)
		if b.Spec.PolicyName == "" {
			errs[0].CoveredByDeclarative = true // unlike for the other kind of bindings
		}
		return append(errs, validateActions(b.Spec.ValidationActions, path.Child("validationActions"))...)
	}
	return api.Kind[*binding]{
		Names:   api.Names{Kind: "ValidatingAdmissionPolicyBinding", Plural: "validatingadmissionpolicybindings", Categories: []string{"api-extensions"}},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *binding { return &binding{} },
		NewList: func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyBindingList{} },

		AnyFinalizers:             true,
		Default:                   func(b *binding) { defaultMatchResources(b.Spec.MatchResources) },
		PrepareCreate:             firstGeneration[*binding],
		Validate:                  func(_ context.Context, b *binding) field.ErrorList { return append(notStatic(b.Name), validate(b)...) },
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

// paramRefCell returns the table cell of a binding's reference to parameters: a name or a selector, or "<unset>".
func paramRefCell(p *admissionv1.ParamRef) string {
	switch {
	case p == nil:
		return "<unset>"
	case p.Name != "":
		// Without a namespace, parameters of all namespaces match.
		return cmp.Or(p.Namespace, "*") + "/" + p.Name
	case p.Selector != nil:
		return p.Selector.String()
	}
	return "<unset>"
}
