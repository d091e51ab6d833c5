// Package pod defines the kind Pod of core/v1, and what pods share with the pod templates of other
// kinds: defaults, validation and warnings.
package pod

import (
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DefaultTemplate sets the defaults of the pod spec in a pod template, without those that only apply to pods.
func DefaultTemplate(t *corev1.PodTemplateSpec) { defaultSpec(&t.Spec) }

// ValidateTemplate validates the pod template at path.
func ValidateTemplate(t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	c := newChecker(&t.Spec, false, "")
	c.Add(metavalidation.ValidateLabels(t.Labels, path.Child("labels")))
	c.Add(apivalidation.ValidateAnnotations(t.Annotations, path.Child("annotations")))
	checkAnnotations(&c.Errors, c.spec, t.Annotations, path.Child("annotations"))
	c.checkSpec(path.Child("spec"))
	checkProfilesMatch(&c.Errors, c.spec, &t.ObjectMeta, path.Child("spec"))
	if len(t.Spec.EphemeralContainers) > 0 {
		c.Forbidden(path.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template")
	}
	return c.List
}

// TemplateWarnings returns the warnings that a client gets for a valid pod template at path: about
// deprecated fields and possible mistakes.
func TemplateWarnings(t *corev1.PodTemplateSpec, path *field.Path) []string {
	return specWarnings(&t.Spec, &t.ObjectMeta, path)
}
