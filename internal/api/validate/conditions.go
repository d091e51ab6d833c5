package validate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Conditions checks the conditions of a status. The library marks some of its
// findings as declared, but no kind has declarations for its conditions, so
// they are told where they are found and not behind the others.
func Conditions(conditions []metav1.Condition, at *field.Path) field.ErrorList {
	errs := metavalidation.ValidateConditions(conditions, at)
	for _, err := range errs {
		err.CoveredByDeclarative = false
	}
	return errs
}
