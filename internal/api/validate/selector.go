package validate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
)

// SelectorOptions are how a selector is checked in place of a stored one, which is
// nil for new objects: values that no label can have, which once were allowed, may
// stay, or else nothing of the object could be changed.
func SelectorOptions(stored *metav1.LabelSelector) metav1validation.LabelSelectorValidationOptions {
	return metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: metav1validation.LabelSelectorHasInvalidLabelValue(stored)}
}
