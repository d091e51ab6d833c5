package authorization

import (
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateSubject(r *authorizationv1.SubjectAccessReview) field.ErrorList {
	return append(validateSubjectSpec(&r.Spec), validateNoMeta(r.ObjectMeta, "must be empty")...)
}

func validateSelf(r *authorizationv1.SelfSubjectAccessReview) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateOneOf(r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes, path)
	errs = append(errs, validateAttributes(r.Spec.ResourceAttributes, path.Child("resourceAttributes"))...)
	return append(errs, validateNoMeta(r.ObjectMeta, "must be empty")...)
}

func validateLocal(r *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
	errs := validateSubjectSpec(&r.Spec)
	if meta := r.ObjectMeta; !isEmptyBut(meta, meta.Namespace) {
		errs = append(errs, field.Invalid(field.NewPath("metadata"), shown(meta), "must be empty except for namespace"))
	}
	if a := r.Spec.ResourceAttributes; a != nil && a.Namespace != r.Namespace {
		errs = append(errs, field.Invalid(field.NewPath("spec.resourceAttributes.namespace"), a.Namespace, "must match metadata.namespace"))
	}
	if a := r.Spec.NonResourceAttributes; a != nil {
		errs = append(errs, field.Invalid(field.NewPath("spec.nonResourceAttributes"), a, "disallowed on this kind of request"))
	}
	return errs
}

func validateSubjectSpec(spec *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateOneOf(spec.ResourceAttributes, spec.NonResourceAttributes, path)
	if spec.User == "" && len(spec.Groups) == 0 {
		errs = append(errs, field.Invalid(path.Child("user"), spec.User, "at least one of user or group must be specified"))
	}
	return append(errs, validateAttributes(spec.ResourceAttributes, path.Child("resourceAttributes"))...)
}

func validateOneOf(resource *authorizationv1.ResourceAttributes, other *authorizationv1.NonResourceAttributes, path *field.Path) field.ErrorList {
	if (resource == nil) == (other == nil) {
		return field.ErrorList{field.Invalid(path, other, "exactly one of nonResourceAttributes or resourceAttributes must be specified")}
	}
	return nil
}

func validateAttributes(a *authorizationv1.ResourceAttributes, path *field.Path) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	if s := a.FieldSelector; s != nil {
		at := path.Child("fieldSelector")
		errs = append(errs, validateSelector(s.RawSelector, len(s.Requirements), at)...)
		opts := metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
		for i := range s.Requirements {
			errs = append(errs, metav1validation.ValidateFieldSelectorRequirement(s.Requirements[i], opts, at.Child("requirements").Index(i))...)
		}
	}
	if s := a.LabelSelector; s != nil {
		at := path.Child("labelSelector")
		errs = append(errs, validateSelector(s.RawSelector, len(s.Requirements), at)...)
		opts := metav1validation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
		for i := range s.Requirements {
			errs = append(errs, metav1validation.ValidateLabelSelectorRequirement(s.Requirements[i], opts, at.Child("requirements").Index(i))...)
		}
	}
	return errs
}

func validateSelector(raw string, requirements int, path *field.Path) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(path.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{field.Required(path.Child("requirements"), fmt.Sprintf("when %s is specified, requirements or rawSelector is required", path))}
	}
	return nil
}

// validateNoMeta checks that a review has no metadata, except managed fields, which server-side
// apply adds. msg is the error message.
func validateNoMeta(meta metav1.ObjectMeta, msg string) field.ErrorList {
	if isEmptyBut(meta, "") {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), shown(meta), msg)}
}

// isEmptyBut reports whether metadata contains only the namespace, apart from managed fields.
func isEmptyBut(meta metav1.ObjectMeta, namespace string) bool {
	return apiequality.Semantic.DeepEqual(shown(meta), metav1.ObjectMeta{Namespace: namespace})
}

// shown returns metadata without the managed fields, as error messages show it.
func shown(meta metav1.ObjectMeta) metav1.ObjectMeta {
	meta.ManagedFields = nil
	return meta
}
