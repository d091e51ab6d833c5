package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// Limits validates a resource list with the rules for the limits of a container, for example the
// overhead of a RuntimeClass. at is the path of a resources field; errors are reported below its
// child limits.
func Limits(e *validate.Errors, list corev1.ResourceList, at *field.Path) {
	checkRequirements(e, &corev1.ResourceRequirements{Limits: list}, validate.ContainerResourceName, at)
}
