package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// checker collects the validation errors of a pod spec. Its methods validate the parts that depend on
// each other, such as containers and volumes; other parts are validated by functions, by topic. The
// fields contain information about the whole spec that the checks of its parts need.
type checker struct {
	validate.Errors

	spec *corev1.PodSpec
	// isPod is set for the spec of a pod, and not set for a pod template.
	isPod bool
	// podName is empty in templates and if the name will be generated.
	podName string
	// hostUsers is set if the pod uses the host's user namespace.
	hostUsers bool
	// volumes contains the valid volumes by name.
	volumes map[string]*corev1.VolumeSource
	// claims contains the names of the pod's resource claims.
	claims map[string]bool
}

// newChecker returns a checker for spec, the spec of a pod if isPod is set, and otherwise of a pod template. podName
// may be empty.
func newChecker(spec *corev1.PodSpec, isPod bool, podName string) *checker {
	c := &checker{
		spec:      spec,
		isPod:     isPod,
		podName:   podName,
		hostUsers: spec.HostUsers == nil || *spec.HostUsers,
	}
	if len(spec.ResourceClaims) > 0 {
		c.claims = make(map[string]bool, len(spec.ResourceClaims))
		for i := range spec.ResourceClaims {
			if name := spec.ResourceClaims[i].Name; name != "" {
				c.claims[name] = true
			}
		}
	}
	return c
}

// eachContainer calls visit for the init, regular and ephemeral containers of a pod, in this order,
// with the field path of each. path is the path of spec; if it is nil, visit gets nil paths.
func eachContainer(spec *corev1.PodSpec, path *field.Path, visit func(*corev1.Container, *field.Path)) {
	at := func(list string, i int) *field.Path {
		if path == nil {
			return nil
		}
		return path.Child(list).Index(i)
	}
	for i := range spec.InitContainers {
		visit(&spec.InitContainers[i], at("initContainers", i))
	}
	for i := range spec.Containers {
		visit(&spec.Containers[i], at("containers", i))
	}
	for i := range spec.EphemeralContainers {
		visit((*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon), at("ephemeralContainers", i))
	}
}
