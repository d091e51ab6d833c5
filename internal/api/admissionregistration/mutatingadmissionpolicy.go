package admissionregistration

import (
	"context"
	"reflect"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"

	"hyperkube/internal/api"
)

var patchTypes = []admissionv1.PatchType{admissionv1.PatchTypeApplyConfiguration, admissionv1.PatchTypeJSONPatch}

func mutatingAdmissionPolicy() api.Kind[*admissionv1.MutatingAdmissionPolicy] {
	type policy = admissionv1.MutatingAdmissionPolicy
	return api.Kind[*policy]{
		Names:   api.Names{Kind: "MutatingAdmissionPolicy", Plural: "mutatingadmissionpolicies", Categories: []string{"api-extensions"}},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *policy { return &policy{} },
		NewList: func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyList{} },

		AnyFinalizers: true,
		Default: func(p *policy) {
			api.SetDefault(&p.Spec.FailurePolicy, admissionv1.Fail)
			defaultMatchResources(p.Spec.MatchConstraints)
		},
		PrepareCreate: firstGeneration[*policy],
		Validate: func(_ context.Context, p *policy) field.ErrorList {
			return append(validateMutatingPolicy(p, nil), notStatic(p.Name)...)
		},
		ForbidUnconditionalUpdate: true,
		Update: api.KindUpdate[*policy]{
			AsNew: true,
			Prepare: func(_ context.Context, p, old *policy) {
				prepareGeneration(p, old, apiequality.Semantic.DeepEqual(p.Spec, old.Spec))
			},
			Validate: func(_ context.Context, p, old *policy) field.ErrorList {
				return validateMutatingPolicy(p, old)
			},
		},
		Columns: describe([]string{"Mutations", "ParamKind"}, []string{
			"Mutation indicates the number of mutations rules defined in this configuration",
			"ParamKind specifies the kind of resources used to parameterize this policy",
		}),
		Row: func(p *policy) []any {
			return []any{p.Name, int64(len(p.Spec.Mutations)), paramKindCell(p.Spec.ParamKind), api.Age(p.CreationTimestamp)}
		},
	}
}

// validateMutatingPolicy validates the policy p. old is the stored policy, nil on create; its
// expressions may use features that new expressions must not, and unchanged match conditions are
// not validated.
func validateMutatingPolicy(p, old *admissionv1.MutatingAdmissionPolicy) field.ErrorList {
	spec, path := &p.Spec, field.NewPath("spec")
	var known expressions
	sameConditions := false
	if old != nil {
		known.addConditions(old.Spec.MatchConditions)
		for _, v := range old.Spec.Variables {
			known.validations = append(known.validations, v.Expression)
		}
		for _, m := range old.Spec.Mutations {
			if m.JSONPatch != nil {
				known.mutations = append(known.mutations, m.JSONPatch.Expression)
			}
			if m.ApplyConfiguration != nil {
				known.mutations = append(known.mutations, m.ApplyConfiguration.Expression)
			}
		}
		sameConditions = reflect.DeepEqual(spec.ParamKind, old.Spec.ParamKind) && reflect.DeepEqual(spec.MatchConditions, old.Spec.MatchConditions)
	}
	params := spec.ParamKind != nil
	errs := validateCommon(spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, path)
	errs = append(errs, validateMutable(spec.MatchConstraints, path.Child("matchConstraints"))...)
	if !sameConditions {
		errs = append(errs, validateMatchConditions(spec.MatchConditions, params, known, path.Child("matchConditions"))...)
	}
	if len(spec.Mutations)+len(spec.Variables) > 0 {
		c, err := compilerFor(spec.Variables)
		if err != nil {
			return append(errs, field.InternalError(path, err))
		}
		errs = append(errs, validateVariables(c, spec.Variables, params, known, path.Child("variables"))...)
		for i := range spec.Mutations {
			errs = append(errs, validateMutation(c, &spec.Mutations[i], params, known, path.Child("mutations").Index(i))...)
		}
	}
	if len(spec.Mutations) == 0 {
		errs = append(errs, field.Required(path.Child("mutations"), "mutations must contain at least one item"))
	}
	if spec.ReinvocationPolicy == "" {
		return append(errs, field.Required(path.Child("reinvocationPolicy"), ""))
	}
	return append(errs, notSupported(path.Child("reinvocationPolicy"), &spec.ReinvocationPolicy, reinvocations)...)
}

// validateMutation validates a mutation: the patch type selects which one of jsonPatch and applyConfiguration must be
// set, and its expression must compile. params and known are as for validateMatchConditions.
func validateMutation(c plugincel.Compiler, m *admissionv1.Mutation, params bool, known expressions, path *field.Path) field.ErrorList {
	if m.PatchType == "" {
		return field.ErrorList{field.Required(path.Child("patchType"), "")}
	}
	var errs field.ErrorList
	check := func(e plugincel.ExpressionAccessor, at *field.Path) {
		if e.GetExpression() == "" {
			errs = append(errs, field.Required(at, ""))
			return
		}
		errs = append(errs, compile(c, e, plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true, HasPatchTypes: true},
			mode(known.mutations, e.GetExpression()), at)...)
	}
	json, apply := path.Child("jsonPatch"), path.Child("applyConfiguration")
	switch m.PatchType {
	case admissionv1.PatchTypeJSONPatch:
		if m.JSONPatch == nil {
			errs = append(errs, field.Required(json, "must be specified when patchType is JSONPatch"))
		} else {
			check(&patch.JSONPatchCondition{Expression: strings.TrimSpace(m.JSONPatch.Expression)}, json.Child("expression"))
		}
		if m.ApplyConfiguration != nil {
			errs = append(errs, field.Invalid(apply, "{applyConfiguration}", "must not be specified when patchType is JSONPatch"))
		}
	case admissionv1.PatchTypeApplyConfiguration:
		if m.ApplyConfiguration == nil {
			errs = append(errs, field.Required(apply, "must be specified when patchType is ApplyConfiguration"))
		} else {
			check(&patch.ApplyConfigurationCondition{Expression: strings.TrimSpace(m.ApplyConfiguration.Expression)}, apply.Child("expression"))
		}
		if m.JSONPatch != nil {
			errs = append(errs, field.Invalid(json, "{jsonPatch}", "must not be specified when patchType is ApplyConfiguration"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("patchType"), m.PatchType, patchTypes))
	}
	return errs
}
