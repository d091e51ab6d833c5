package admissionregistration

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/client-go/util/jsonpath"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

const (
	maxAnnotations = 20
	// maxAnnotationExpression is the maximum length, in bytes, of a CEL expression that computes the value of an audit
	// annotation.
	maxAnnotationExpression = 5 * 1024
)

var reasons = []metav1.StatusReason{metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge}

func validatingAdmissionPolicy() api.Kind[*admissionv1.ValidatingAdmissionPolicy] {
	type policy = admissionv1.ValidatingAdmissionPolicy
	return api.Kind[*policy]{
		Names:   api.Names{Kind: "ValidatingAdmissionPolicy", Plural: "validatingadmissionpolicies", Categories: []string{"api-extensions"}},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *policy { return &policy{} },
		NewList: func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyList{} },

		AnyFinalizers: true,
		Default: func(p *policy) {
			api.SetDefault(&p.Spec.FailurePolicy, admissionv1.Fail)
			defaultMatchResources(p.Spec.MatchConstraints)
		},
		PrepareCreate: func(_ context.Context, p *policy) {
			p.Status = admissionv1.ValidatingAdmissionPolicyStatus{}
			p.Generation = 1
		},
		Validate: func(_ context.Context, p *policy) field.ErrorList {
			return append(validateValidatingPolicy(p, nil), notStatic(p.Name)...)
		},
		ForbidUnconditionalUpdate: true,
		Update: api.KindUpdate[*policy]{
			AsNew: true,
			Prepare: func(_ context.Context, p, old *policy) {
				old.Status.DeepCopyInto(&p.Status)
				prepareGeneration(p, old, apiequality.Semantic.DeepEqual(p.Spec, old.Spec))
			},
			Validate: func(_ context.Context, p, old *policy) field.ErrorList {
				return validateValidatingPolicy(p, old)
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*policy]{
			"status": {
				Prepare: func(_ context.Context, p, old *policy) {
					old.Spec.DeepCopyInto(&p.Spec)
					metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &old.ObjectMeta)
				},
				Validate: func(_ context.Context, p, _ *policy) field.ErrorList {
					return validatePolicyStatus(&p.Status, field.NewPath("status"))
				},
				ResetFields:  [][]string{{"metadata"}, {"spec"}},
				ApplyCreates: true,
			},
		},
		Columns: describe([]string{"Validations", "ParamKind"}, []string{
			"Validations indicates the number of validation rules defined in this configuration",
			"ParamKind specifies the kind of resources used to parameterize this policy",
		}),
		Row: func(p *policy) []any {
			return []any{p.Name, int64(len(p.Spec.Validations)), paramKindCell(p.Spec.ParamKind), api.Age(p.CreationTimestamp)}
		},
	}
}

// validateValidatingPolicy validates the policy p. old is the stored policy, nil on create; its
// expressions may use features that new expressions must not, and unchanged match conditions are
// not validated.
func validateValidatingPolicy(p, old *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
	spec, path := &p.Spec, field.NewPath("spec")
	var known expressions
	sameConditions := false
	if old != nil {
		known.addConditions(old.Spec.MatchConditions)
		for _, v := range old.Spec.Validations {
			known.validations = append(known.validations, v.Expression)
			if v.MessageExpression != "" {
				known.messages = append(known.messages, v.MessageExpression)
			}
		}
		for _, a := range old.Spec.AuditAnnotations {
			known.annotations = append(known.annotations, a.ValueExpression)
		}
		sameConditions = reflect.DeepEqual(spec.ParamKind, old.Spec.ParamKind) && reflect.DeepEqual(spec.MatchConditions, old.Spec.MatchConditions)
	}
	params := spec.ParamKind != nil
	errs := validateCommon(spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, path)
	if !sameConditions {
		errs = append(errs, validateMatchConditions(spec.MatchConditions, params, known, path.Child("matchConditions"))...)
	}
	if len(spec.Validations)+len(spec.AuditAnnotations)+len(spec.Variables) == 0 {
		return append(errs, nothingValidated(path)...)
	}
	c, err := compilerFor(spec.Variables)
	if err != nil {
		return append(errs, field.InternalError(path, err))
	}
	errs = append(errs, validateVariables(c, spec.Variables, params, known, path.Child("variables"))...)
	if len(spec.Validations)+len(spec.AuditAnnotations) == 0 {
		return append(errs, nothingValidated(path)...)
	}
	for i := range spec.Validations {
		errs = append(errs, validateValidation(c, &spec.Validations[i], params, known, path.Child("validations").Index(i))...)
	}
	at := path.Child("auditAnnotations")
	if len(spec.AuditAnnotations) > maxAnnotations {
		errs = append(errs, field.Invalid(at, spec.AuditAnnotations, fmt.Sprintf("must not have more than %d auditAnnotations", maxAnnotations)))
	}
	keys := map[string]bool{}
	for i, a := range spec.AuditAnnotations {
		errs = append(errs, validateAnnotation(c, p.Name, &spec.AuditAnnotations[i], params, known, at.Index(i))...)
		if keys[a.Key] {
			errs = append(errs, field.Duplicate(at.Index(i).Child("key"), a.Key))
		}
		keys[a.Key] = true
	}
	return errs
}

// nothingValidated returns the errors for a policy that has neither validations nor audit annotations.
func nothingValidated(path *field.Path) field.ErrorList {
	const text = "validations or auditAnnotations must contain at least one item"
	return field.ErrorList{field.Required(path.Child("validations"), text), field.Required(path.Child("auditAnnotations"), text)}
}

// validateValidation validates a validation of a policy. Its expression is required, and it and the message expression
// must compile. A message has a single line. params and known are as for validateMatchConditions.
func validateValidation(c plugincel.Compiler, v *admissionv1.Validation, params bool, known expressions, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if strings.TrimSpace(v.Expression) == "" {
		errs = append(errs, field.Required(path.Child("expression"), "expression is not specified"))
	} else {
		errs = append(errs, compile(c, &validating.ValidationCondition{Expression: v.Expression},
			plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, mode(known.validations, v.Expression), path.Child("expression"))...)
	}
	// Compile the untrimmed expressions, so that the columns in errors match the user's input.
	switch {
	case v.MessageExpression == "":
	case strings.TrimSpace(v.MessageExpression) == "":
		errs = append(errs, field.Invalid(path.Child("messageExpression"), v.MessageExpression, "must be non-empty if specified"))
	default:
		errs = append(errs, compile(c, &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression},
			plugincel.OptionalVariableDeclarations{HasParams: params}, mode(known.messages, v.MessageExpression), path.Child("messageExpression"))...)
	}
	if trimmed := strings.TrimSpace(v.Message); v.Message != "" && trimmed == "" {
		errs = append(errs, field.Invalid(path.Child("message"), v.Message, "must be non-empty if specified"))
	} else if strings.ContainsAny(trimmed, "\n\r") {
		errs = append(errs, field.Invalid(path.Child("message"), v.Message, "must not contain line breaks"))
	}
	if v.Reason != nil && !slices.Contains(reasons, *v.Reason) {
		errs = append(errs, field.NotSupported(path.Child("reason"), *v.Reason, reasons))
	}
	return errs
}

// validateAnnotation validates an audit annotation of the policy named policy. The name of the policy and the key form
// a qualified name; the value expression is required, has a maximum length, and must compile. params and known are as
// for validateMatchConditions.
func validateAnnotation(c plugincel.Compiler, policy string, a *admissionv1.AuditAnnotation, params bool, known expressions, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if policy == "" {
		errs = append(errs, field.Invalid(path.Child("key"), a.Key, "requires metadata.name be non-empty"))
	} else {
		errs = append(errs, qualifiedName(policy+"/"+a.Key, path.Child("key"))...)
	}
	trimmed := strings.TrimSpace(a.ValueExpression)
	at := path.Child("valueExpression")
	switch {
	case trimmed == "":
		return append(errs, field.Required(at, "valueExpression is not specified"))
	case len(trimmed) > maxAnnotationExpression:
		return append(errs, field.Required(at, fmt.Sprintf("must not exceed %d bytes in length", maxAnnotationExpression)))
	}
	result := c.CompileCELExpression(&validating.AuditAnnotationCondition{ValueExpression: trimmed},
		plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, mode(known.annotations, a.ValueExpression))
	if result.Error != nil {
		errs = append(errs, celError(at, a.ValueExpression, result.Error))
	}
	return errs
}

func validatePolicyStatus(s *admissionv1.ValidatingAdmissionPolicyStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.TypeChecking != nil {
		for i, w := range s.TypeChecking.ExpressionWarnings {
			at := path.Child("typeChecking", "expressionWarnings").Index(i)
			if w.Warning == "" {
				errs = append(errs, field.Required(at.Child("warning"), ""))
			}
			ref := strings.TrimSpace(w.FieldRef)
			if ref == "" {
				errs = append(errs, field.Required(at.Child("fieldRef"), ""))
			} else if err := jsonpath.New("spec").Parse("{" + ref + "}"); err != nil {
				errs = append(errs, field.Invalid(at.Child("fieldRef"), ref, fmt.Sprintf("invalid JSONPath: %v", err)))
			}
		}
	}
	return append(errs, validate.Conditions(s.Conditions, path.Child("conditions"))...)
}
