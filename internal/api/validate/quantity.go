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

// NonNegativeQuantity checks that a quantity is not negative.
func (e *Errors) NonNegativeQuantity(path *field.Path, q resource.Quantity) {
	if q.Sign() < 0 {
		e.Invalid(path, q.String(), isNegative)
	}
}

// PositiveQuantity checks that a quantity is greater than zero.
func (e *Errors) PositiveQuantity(path *field.Path, q resource.Quantity) {
	if q.Sign() <= 0 {
		e.Invalid(path, q.String(), isNotPositive)
	}
}

// BasicQuantity checks that an available amount, such as a node's capacity, is not negative. It adds an error with
// another message than NonNegativeQuantity, as upstream does.
func (e *Errors) BasicQuantity(path *field.Path, q resource.Quantity) {
	if q.Value() < 0 {
		e.Invalid(path, q.Value(), "must be a valid resource quantity")
	}
}

// Quantity validates the quantity q of the resource name: it must not be negative, and must be an
// integer for resources that are counted, such as pods and extended resources.
func (e *Errors) Quantity(path *field.Path, name corev1.ResourceName, q resource.Quantity) {
	e.NonNegativeQuantity(path, q)
	if isInteger(name) && q.MilliValue()%1000 != 0 {
		e.Invalid(path, q, isNotInteger)
	}
}

// RoundUp rounds the quantities in list up to thousandths, the highest precision in the API.
// Defaulting calls it for each resource list that users write.
func RoundUp(list corev1.ResourceList) {
	for name, q := range list {
		if !q.RoundUp(-3) {
			list[name] = q
		}
	}
}
