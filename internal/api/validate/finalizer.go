// Package validate has the checks that kinds of several API groups share:
// finalizers, label selectors, quantities, addresses, numbers. Error types,
// field paths and messages are those of upstream Kubernetes. All functions are
// pure and return nil when there is nothing to say.
package validate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Finalizer checks the name of a finalizer: a qualified name, which without a
// domain must be one of Kubernetes' own.
func Finalizer(name string, path *field.Path) field.ErrorList {
	return append(apivalidation.ValidateFinalizerName(name, path), StandardFinalizer(name, path)...)
}

// StandardFinalizers is StandardFinalizer for those of an object's metadata.
func StandardFinalizers(names []string) field.ErrorList {
	var errs field.ErrorList
	for i, name := range names {
		errs = append(errs, StandardFinalizer(name, field.NewPath("metadata", "finalizers").Index(i))...)
	}
	return errs
}

// StandardFinalizer checks that a name without a domain is one of Kubernetes'
// own.
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
