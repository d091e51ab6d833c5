package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	scopes        = []admissionv1.ScopeType{admissionv1.AllScopes, admissionv1.ClusterScope, admissionv1.NamespacedScope}
	allOperations = []admissionv1.OperationType{admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create, admissionv1.Delete, admissionv1.Update}
	// mutableOperations are the operations that the rules of mutating policies and bindings may name. Delete is not
	// among them, because a deletion has no object to mutate.
	mutableOperations = []admissionv1.OperationType{admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create, admissionv1.Update}
)

// onlyWildcard returns an error if values contains "*" and other values. what is the name of the
// values in the message, in the plural.
func onlyWildcard[T ~string](path *field.Path, values []T, what string) field.ErrorList {
	if len(values) > 1 && slices.Contains(values, "*") {
		return field.ErrorList{field.Invalid(path, values, "if '*' is present, must not specify other "+what)}
	}
	return nil
}

// validateRule validates a rule, which selects requests. Except for the scope, all its fields are required. A wildcard
// must be the only value of its list, except in resources, which validateResources validates.
func validateRule(r *admissionv1.RuleWithOperations, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Operations) == 0 {
		errs = append(errs, field.Required(path.Child("operations"), ""))
	}
	errs = append(errs, onlyWildcard(path.Child("operations"), r.Operations, "operations")...)
	for i := range r.Operations {
		errs = append(errs, notSupported(path.Child("operations").Index(i), &r.Operations[i], allOperations)...)
	}
	if len(r.APIGroups) == 0 {
		errs = append(errs, field.Required(path.Child("apiGroups"), ""))
	}
	errs = append(errs, onlyWildcard(path.Child("apiGroups"), r.APIGroups, "API groups")...)
	if len(r.APIVersions) == 0 {
		errs = append(errs, field.Required(path.Child("apiVersions"), ""))
	}
	errs = append(errs, onlyWildcard(path.Child("apiVersions"), r.APIVersions, "API versions")...)
	for i, v := range r.APIVersions {
		if v == "" {
			errs = append(errs, field.Required(path.Child("apiVersions").Index(i), ""))
		}
	}
	errs = append(errs, validateResources(r.Resources, path.Child("resources"))...)
	return append(errs, notSupported(path.Child("scope"), r.Scope, scopes)...)
}

// validateResources validates the resources of a rule. A wildcard excludes the names that it covers: "*" the other
// resources without a subresource, "R/*" the subresources of R, "*/S" the subresource S of resources, and "*/*" all
// other names. Names before a wildcard of a subresource are not checked against it.
func validateResources(resources []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(resources) == 0 {
		errs = append(errs, field.Required(path, ""))
	}
	// whole contains x for each "x/*", sub contains x for each "*/x".
	whole, sub := map[string]bool{}, map[string]bool{}
	plain := false
	for i, name := range resources {
		if name == "" {
			errs = append(errs, field.Required(path.Index(i), ""))
			continue
		}
		r, s, ok := strings.Cut(name, "/")
		if !ok {
			// As in upstream, the last one counts.
			plain = name != "*"
			continue
		}
		if whole[r] {
			errs = append(errs, field.Invalid(path.Index(i), name, fmt.Sprintf("if '%s/*' is present, must not specify %s", r, name)))
		}
		if sub[s] {
			errs = append(errs, field.Invalid(path.Index(i), name, fmt.Sprintf("if '*/%s' is present, must not specify %s", s, name)))
		}
		if s == "*" {
			whole[r] = true
		}
		if r == "*" {
			sub[s] = true
		}
	}
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		errs = append(errs, field.Invalid(path, resources, "if '*/*' is present, must not specify other resources"))
	}
	if plain && slices.Contains(resources, "*") {
		errs = append(errs, field.Invalid(path, resources, "if '*' is present, must not specify other resources without subresources"))
	}
	return errs
}

// validateMatchResources validates which requests a policy or a binding matches. The match policy and both selectors
// are required, because defaults set them. nil is valid.
func validateMatchResources(m *admissionv1.MatchResources, path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	if m.MatchPolicy == nil {
		errs = append(errs, field.Required(path.Child("matchPolicy"), ""))
	}
	errs = append(errs, notSupported(path.Child("matchPolicy"), m.MatchPolicy, matches)...)
	if m.NamespaceSelector == nil {
		errs = append(errs, field.Required(path.Child("namespaceSelector"), ""))
	} else {
		errs = append(errs, metav1validation.ValidateLabelSelector(m.NamespaceSelector, metav1validation.LabelSelectorValidationOptions{}, path.Child("namespaceSelector"))...)
	}
	if m.ObjectSelector == nil {
		errs = append(errs, field.Required(path.Child("objectSelector"), ""))
	} else {
		errs = append(errs, metav1validation.ValidateLabelSelector(m.ObjectSelector, metav1validation.LabelSelectorValidationOptions{}, path.Child("objectSelector"))...)
	}
	for i := range m.ResourceRules {
		errs = append(errs, validateNamedRule(&m.ResourceRules[i], path.Child("resourceRules").Index(i))...)
	}
	for i := range m.ExcludeResourceRules {
		errs = append(errs, validateNamedRule(&m.ExcludeResourceRules[i], path.Child("excludeResourceRules").Index(i))...)
	}
	return errs
}

// validateMutable checks that the rules of a mutating policy or binding do not match delete
// requests, which have no object to mutate. m may be nil.
func validateMutable(m *admissionv1.MatchResources, path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	for i := range m.ResourceRules {
		for _, o := range m.ResourceRules[i].Operations {
			errs = append(errs, notSupported(path.Child("resourceRules", "operations"), &o, mutableOperations)...)
		}
	}
	return errs
}

func validateNamedRule(r *admissionv1.NamedRuleWithOperations, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, name := range r.ResourceNames {
		at := path.Child("resourceNames").Index(i)
		for _, msg := range pathvalidation.ValidatePathSegmentName(name, false) {
			errs = append(errs, field.Invalid(at, name, msg))
		}
		if slices.Contains(r.ResourceNames[:i], name) {
			errs = append(errs, field.Duplicate(at, name))
		}
	}
	return append(errs, validateRule(&r.RuleWithOperations, path)...)
}
