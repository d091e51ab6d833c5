package validate

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	isNegative    = validation.IsNegativeErrorMsg
	isNotPositive = "must be greater than zero"
	isNotInteger  = "must be an integer"
)

// NonNegativeQuantity checks a quantity that may be zero or more.
func (e *Errors) NonNegativeQuantity(path *field.Path, q resource.Quantity) {
	if q.Sign() < 0 {
		e.Invalid(path, q.String(), isNegative)
	}
}

// PositiveQuantity checks a quantity that must be more than zero.
func (e *Errors) PositiveQuantity(path *field.Path, q resource.Quantity) {
	if q.Sign() <= 0 {
		e.Invalid(path, q.String(), isNotPositive)
	}
}

// BasicQuantity checks an amount that something has, such as a capacity.
func (e *Errors) BasicQuantity(path *field.Path, q resource.Quantity) {
	if q.Value() < 0 {
		e.Invalid(path, q.Value(), "must be a valid resource quantity")
	}
}

// Quantity checks the amount of a resource: not negative, and whole for what
// is counted.
func (e *Errors) Quantity(path *field.Path, name corev1.ResourceName, q resource.Quantity) {
	e.NonNegativeQuantity(path, q)
	if isInteger(name) && q.MilliValue()%1000 != 0 {
		e.Invalid(path, q, isNotInteger)
	}
}

// RoundUp rounds the quantities of a list up to thousandths, the smallest
// amount that the API knows. It belongs to the defaulting of every resource
// list that users write.
func RoundUp(list corev1.ResourceList) {
	for name, q := range list {
		if !q.RoundUp(-3) {
			list[name] = q
		}
	}
}
