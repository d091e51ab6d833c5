package validate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Conditions validates the conditions of a status at the path at. The apimachinery library marks some of its errors as
// declarative, but no kind validates conditions declaratively, so the mark is removed: DeclaredLast then keeps the
// position of these errors.
func Conditions(conditions []metav1.Condition, at *field.Path) field.ErrorList {
	errs := metavalidation.ValidateConditions(conditions, at)
	for _, err := range errs {
		err.CoveredByDeclarative = false
	}
	return errs
}
