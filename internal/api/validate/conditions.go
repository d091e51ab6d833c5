package validate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Conditions validates the conditions of a status. The library marks some errors as declarative,
// but no kind has declarative validation of conditions, so the mark is removed to keep their
// position.
func Conditions(conditions []metav1.Condition, at *field.Path) field.ErrorList {
	errs := metavalidation.ValidateConditions(conditions, at)
	for _, err := range errs {
		err.CoveredByDeclarative = false
	}
	return errs
}
