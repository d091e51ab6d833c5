package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// checker collects what is wrong with one pod specification. The fields say
// what checks of a part need to know of the whole.
type checker struct {
	validate.Errors

	spec *corev1.PodSpec
	// isPod: the specification is a pod's and not a template's.
	isPod bool
	// podName is empty in templates and for names yet to be generated.
	podName string
	// hostUsers: the pod has no user namespace of its own.
	hostUsers bool
	// volumes that are valid, by name.
	volumes map[string]*corev1.VolumeSource
	// claims are the names of the pod's resource claims.
	claims map[string]bool
}

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

// eachContainer visits the init, regular and ephemeral containers with their
// paths, in this order. Without a path there are none.
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
