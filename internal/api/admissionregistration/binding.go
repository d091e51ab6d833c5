package admissionregistration

import (
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	actions  = []admissionv1.ValidationAction{admissionv1.Audit, admissionv1.Deny, admissionv1.Warn}
	notFound = []admissionv1.ParameterNotFoundActionType{admissionv1.DenyAction, admissionv1.AllowAction}
)

// validateReferences validates the fields that bindings of validating and mutating policies share:
// the policy name, the reference to parameters and the match resources. path is the path of the
// spec.
func validateReferences(policy string, params *admissionv1.ParamRef, m *admissionv1.MatchResources, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if policy == "" {
		errs = append(errs, field.Required(path.Child("policyName"), ""))
	} else {
		for _, msg := range apivalidation.NameIsDNSSubdomain(policy, false) {
			errs = append(errs, field.Invalid(path.Child("policyName"), policy, msg))
		}
	}
	errs = append(errs, validateParamRef(params, path.Child("paramRef"))...)
	return append(errs, validateMatchResources(m, path.Child("matchResources"))...)
}

// validateParamRef validates the reference of a binding to its parameters: exactly one of name and selector, and a
// required parameterNotFoundAction. A nil reference is valid.
func validateParamRef(p *admissionv1.ParamRef, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	var errs field.ErrorList
	const exclusive = "name and selector are mutually exclusive"
	if p.Name != "" {
		for _, msg := range pathvalidation.ValidatePathSegmentName(p.Name, false) {
			errs = append(errs, field.Invalid(path.Child("name"), p.Name, msg))
		}
		if p.Selector != nil {
			errs = append(errs, field.Forbidden(path.Child("name"), exclusive))
		}
	}
	if p.Selector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(p.Selector, metav1validation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
		if p.Name != "" {
			errs = append(errs, field.Forbidden(path.Child("selector"), exclusive))
		}
	}
	if p.Name == "" && p.Selector == nil {
		errs = append(errs, field.Required(path, "one of name or selector must be specified"))
	}
	if p.ParameterNotFoundAction == nil || *p.ParameterNotFoundAction == "" {
		return append(errs, field.Required(path.Child("parameterNotFoundAction"), ""))
	}
	return append(errs, notSupported(path.Child("parameterNotFoundAction"), p.ParameterNotFoundAction, notFound)...)
}

// validateActions validates the actions of a binding. At least one is required, none may be repeated, and Deny and Warn
// exclude each other.
func validateActions(values []admissionv1.ValidationAction, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range values {
		errs = append(errs, notSupported(path.Index(i), &values[i], actions)...)
		if slices.Contains(values[:i], values[i]) {
			errs = append(errs, field.Duplicate(path.Index(i), values[i]))
		}
	}
	if slices.Contains(values, admissionv1.Deny) && slices.Contains(values, admissionv1.Warn) {
		errs = append(errs, field.Invalid(path, values,
			"must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	if len(values) == 0 {
		errs = append(errs, field.Required(path, "").MarkCoveredByDeclarative())
	}
	return errs
}
