package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// Limits checks a list of resources as if it were the limits of a container
// whose resources are at the path.
func Limits(e *validate.Errors, list corev1.ResourceList, at *field.Path) {
	c := checker{}
	c.checkRequirements(&corev1.ResourceRequirements{Limits: list}, validate.ContainerResourceName, at)
	e.Add(c.List)
}
