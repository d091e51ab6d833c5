package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// Limits validates a resource list like the limits of a container. at is the path of the
// container's resources.
func Limits(e *validate.Errors, list corev1.ResourceList, at *field.Path) {
	checkRequirements(e, &corev1.ResourceRequirements{Limits: list}, validate.ContainerResourceName, at)
}
