// Package pod describes the Pod kind of core/v1, and what pods share with the
// pod templates of other kinds: defaults, validation and warnings.
package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DefaultTemplate fills what is unset in a pod template.
func DefaultTemplate(t *corev1.PodTemplateSpec) { DefaultSpec(&t.Spec) }

// ValidateTemplate checks a pod template that is at path.
func ValidateTemplate(t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList { return nil }

// TemplateWarnings are what a client should be told of a valid pod template
// that is at path.
func TemplateWarnings(t *corev1.PodTemplateSpec, path *field.Path) []string { return nil }
