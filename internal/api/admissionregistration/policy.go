package admissionregistration

import (
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

var (
	nameColumn = api.NameColumn
	ageColumn  = api.AgeColumn
)

// validateCommon validates the fields that validating and mutating policies share. params may be
// nil, but failure and m are required. path is the path of the spec.
func validateCommon(failure *admissionv1.FailurePolicyType, params *admissionv1.ParamKind, m *admissionv1.MatchResources, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if failure == nil {
		errs = append(errs, field.Required(path.Child("failurePolicy"), ""))
	}
	errs = append(errs, notSupported(path.Child("failurePolicy"), failure, failures)...)
	if params != nil {
		errs = append(errs, validateParamKind(params, path.Child("paramKind"))...)
	}
	if m == nil {
		return append(errs, field.Required(path.Child("matchConstraints"), ""))
	}
	errs = append(errs, validateMatchResources(m, path.Child("matchConstraints"))...)
	if len(m.ResourceRules) == 0 {
		// The rules determine the types for type checking.
		errs = append(errs, field.Required(path.Child("matchConstraints", "resourceRules"), ""))
	}
	return errs
}

// validateParamKind validates the API version and the kind of a policy's parameters. It does not check whether the kind
// exists.
func validateParamKind(p *admissionv1.ParamKind, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("apiVersion")
	group, version, ok := strings.Cut(p.APIVersion, "/")
	if !ok {
		group, version = "", p.APIVersion
	}
	switch {
	case p.APIVersion == "":
		errs = append(errs, field.Required(at, ""))
	case strings.Count(p.APIVersion, "/") > 1:
		errs = append(errs, field.Invalid(at, p.APIVersion, fmt.Sprintf("unexpected GroupVersion string: %v", p.APIVersion)))
	default:
		if group != "" {
			if msgs := validation.IsDNS1123Subdomain(group); len(msgs) > 0 {
				errs = append(errs, field.Invalid(at, group, strings.Join(msgs, ",")))
			}
		}
		if version == "" {
			errs = append(errs, field.Invalid(at, p.APIVersion, "version must be specified"))
		} else if msgs := validation.IsDNS1035Label(version); len(msgs) > 0 {
			errs = append(errs, field.Invalid(at, version, strings.Join(msgs, ",")))
		}
	}
	if p.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), ""))
	} else if msgs := validation.IsDNS1035Label(strings.ToLower(p.Kind)); len(msgs) > 0 {
		errs = append(errs, field.Invalid(path.Child("kind"), p.Kind, "may have mixed case, but should otherwise match: "+strings.Join(msgs, ",")))
	}
	return errs
}

// paramKindCell returns the table cell of a policy's parameter kind, "<unset>" if there is none.
func paramKindCell(p *admissionv1.ParamKind) string {
	if p == nil {
		return "<unset>"
	}
	return p.APIVersion + "/" + p.Kind
}

// describe returns the table columns of a policy: the name, one column for each of names with the description at the
// same index, and the age.
func describe(names, descriptions []string) []metav1.TableColumnDefinition {
	out := []metav1.TableColumnDefinition{nameColumn}
	for i, name := range names {
		typ := "integer"
		if name == "ParamKind" || name == "ReinvocationPolicy" {
			typ = "string"
		}
		out = append(out, metav1.TableColumnDefinition{Name: name, Type: typ, Description: descriptions[i]})
	}
	return append(out, ageColumn)
}
