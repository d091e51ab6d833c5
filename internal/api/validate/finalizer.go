// Package validate contains validation that kinds of several API groups share: finalizers, label
// selectors, quantities, IP addresses, numbers. Error types, field paths and messages are those of
// upstream Kubernetes. The functions have no side effects and return nil if there are no errors.
package validate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Finalizer validates the name of a finalizer: a qualified name, which must be a standard finalizer
// if it has no domain.
func Finalizer(name string, path *field.Path) field.ErrorList {
	return append(apivalidation.ValidateFinalizerName(name, path), StandardFinalizer(name, path)...)
}

// StandardFinalizers applies StandardFinalizer to the finalizers of an object's metadata.
func StandardFinalizers(names []string) field.ErrorList {
	var errs field.ErrorList
	for i, name := range names {
		errs = append(errs, StandardFinalizer(name, field.NewPath("metadata", "finalizers").Index(i))...)
	}
	return errs
}

// StandardFinalizer returns an error if a finalizer has no domain and is not one of the three that Kubernetes itself
// defines.
func StandardFinalizer(name string, path *field.Path) field.ErrorList {
	if strings.Contains(name, "/") {
		return nil
	}
	switch name {
	case string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
		return nil
	}
	return field.ErrorList{field.Invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified")}
}
