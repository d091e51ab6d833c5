package validate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
)

// SelectorOptions returns the options for validating a label selector. stored is the selector of
// the stored object, or nil on create. Invalid label values were allowed in the past, so they
// remain valid if stored contains any. Otherwise the object could not be updated.
func SelectorOptions(stored *metav1.LabelSelector) metav1validation.LabelSelectorValidationOptions {
	return metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: metav1validation.LabelSelectorHasInvalidLabelValue(stored)}
}
