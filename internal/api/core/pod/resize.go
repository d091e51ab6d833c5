package pod

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/pod/podutil"
)

// keepResize reverts all changes to the spec in a resize request, except those of resources and
// resize policies. If containers were added, removed, renamed or reordered, it does nothing, and
// validation rejects the request.
func keepResize(p, old *corev1.Pod) {
	if !sameNames(p.Spec.Containers, old.Spec.Containers) || !sameNames(p.Spec.InitContainers, old.Spec.InitContainers) {
		return
	}
	requested := p.Spec
	old.Spec.DeepCopyInto(&p.Spec)
	p.Spec.Resources = requested.Resources
	take := func(to, from []corev1.Container) {
		for i := range to {
			to[i].Resources = from[i].Resources
			to[i].ResizePolicy = from[i].ResizePolicy
		}
	}
	take(p.Spec.Containers, requested.Containers)
	take(p.Spec.InitContainers, requested.InitContainers)
}

// sameNames reports whether two lists contain containers of the same names in the same order.
func sameNames(a, b []corev1.Container) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name {
			return false
		}
	}
	return true
}

// validateResize validates a resize request, which changes the CPU and memory of a pod's containers
// or the pod-level resources (KEP-1287). The QoS class must not change, and static and Windows pods
// cannot be resized.
func validateResize(p, old *corev1.Pod) field.ErrorList {
	whole := field.NewPath("")
	if _, static := old.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return field.ErrorList{field.Forbidden(whole, "static pods cannot be resized")}
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(whole, "windows pods cannot be resized")}
	}
	e := validateChanged(p, old)
	path := field.NewPath("spec")
	was := old.Status.QOSClass
	if was == "" {
		was = QOS(old)
	}
	if was != QOS(p) {
		e.Invalid(path, p.Status.QOSClass, "Pod QOS Class may not change as a result of resizing")
	}
	if !nodeCanResize(old) {
		e.Forbidden(path, "Pod running on node without support for resize")
	}
	spec := p.Spec.DeepCopy()
	if hasResources(spec.Resources) || hasResources(old.Spec.Resources) {
		e.Add(validatePodLevelResize(spec, old.Spec.Resources, path))
	}
	moved := validateSameContainers(path, "containers", p.Spec.Containers, old.Spec.Containers)
	if moved = append(moved, validateSameContainers(path, "initContainers", p.Spec.InitContainers, old.Spec.InitContainers)...); len(moved) > 0 {
		e.Add(moved)
		return e.List
	}
	for i := range spec.InitContainers {
		e.Add(removedResources(&spec.InitContainers[i].Resources, &old.Spec.InitContainers[i].Resources, path.Child("initContainers").Index(i).Child("resources")))
	}
	for i := range spec.Containers {
		e.Add(removedResources(&spec.Containers[i].Resources, &old.Spec.Containers[i].Resources, path.Child("containers").Index(i).Child("resources")))
	}
	for i := range spec.Containers {
		if !onlyComputeChanged(&spec.Containers[i], &old.Spec.Containers[i]) {
			e.Forbidden(path, "only cpu and memory resources are mutable")
		}
	}
	for i := range spec.InitContainers {
		is, was := &spec.InitContainers[i], &old.Spec.InitContainers[i]
		changed := !apiequality.Semantic.DeepEqual(is, was)
		if !onlyComputeChanged(is, was) {
			e.Forbidden(path.Child("initContainers").Index(i), "only cpu and memory resources for init or sidecar containers are mutable")
		}
		if changed && !podutil.Sidecar(was) && slices.ContainsFunc(is.ResizePolicy, func(p corev1.ContainerResizePolicy) bool { return p.RestartPolicy == corev1.RestartContainer }) {
			e.Forbidden(path.Child("initContainers").Index(i), "non-sidecar init containers with a resize policy of RestartContainer cannot be resized")
		}
	}
	if len(e.List) == 0 && !apiequality.Semantic.DeepEqual(*spec, old.Spec) {
		e.Forbidden(path, "only cpu and memory resources are mutable")
	}
	return e.List
}

func hasResources(r *corev1.ResourceRequirements) bool {
	return r != nil && len(r.Requests)+len(r.Limits) > 0
}

// validatePodLevelResize validates the pod-level resources in spec, the spec of a resize request.
// was contains the stored ones. A request may add them to a pod without any, but not remove them.
// The function then sets spec.Resources to was, so that the caller can compare the rest of the
// spec. (KEP-5419)
func validatePodLevelResize(spec *corev1.PodSpec, was *corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	is, at := spec.Resources, path.Child("resources")
	spec.Resources = was
	if is == nil && was == nil {
		return nil
	}
	if is == nil {
		return field.ErrorList{field.Forbidden(at, "pod-level resources cannot be removed")}
	}
	if was == nil {
		was = &corev1.ResourceRequirements{}
	}
	errs := validateNotRemoved(is, was, at, "pod-level resource")
	if !apiequality.Semantic.DeepEqual(withoutCompute(is, was), was) {
		errs = append(errs, field.Forbidden(path, "only cpu and memory resources are mutable at pod-level"))
	}
	return errs
}

// validateSameContainers returns errors for containers that a resize request has added, removed,
// renamed or reordered. list is the name of the field below path, such as "initContainers".
func validateSameContainers(path *field.Path, list string, is, was []corev1.Container) field.ErrorList {
	path = path.Child(list)
	if len(is) != len(was) {
		return field.ErrorList{field.Forbidden(path, list+" may not be added or removed on resize")}
	}
	var errs field.ErrorList
	for i := range is {
		if is[i].Name != was[i].Name {
			errs = append(errs, field.Forbidden(path.Index(i).Child("name"), list+" may not be renamed or reordered on resize"))
		}
	}
	return errs
}

// nodeCanResize reports whether the pod's kubelet supports resizing. Such a kubelet reports the
// resources of running containers in the status. It returns true if no container is running.
func nodeCanResize(p *corev1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		if s := &p.Status.ContainerStatuses[i]; s.State.Running != nil {
			return s.Resources != nil
		}
	}
	return true
}

func removedResources(is, was *corev1.ResourceRequirements, at *field.Path) field.ErrorList {
	return validateNotRemoved(is, was, at, "resource")
}

// validateNotRemoved returns errors if requests or limits of was are missing in is. what is the
// name of the resources in the errors.
func validateNotRemoved(is, was *corev1.ResourceRequirements, at *field.Path, what string) field.ErrorList {
	removed := func(is, was corev1.ResourceList) bool {
		for name := range was {
			if _, ok := is[name]; !ok {
				return true
			}
		}
		return false
	}
	var errs field.ErrorList
	if removed(is.Requests, was.Requests) {
		errs = append(errs, field.Forbidden(at.Child("requests"), what+" requests cannot be removed"))
	}
	if removed(is.Limits, was.Limits) {
		errs = append(errs, field.Forbidden(at.Child("limits"), what+" limits cannot be removed"))
	}
	return errs
}

// onlyComputeChanged reports whether the new container is and the stored container was differ only in CPU and memory.
// It sets those in is to the values of was.
func onlyComputeChanged(is, was *corev1.Container) bool {
	is.Resources = *withoutCompute(&is.Resources, &was.Resources)
	return apiequality.Semantic.DeepEqual(is, was)
}

// withoutCompute returns a copy of the resources is, in which CPU and memory have the values of was.
func withoutCompute(is, was *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	out := is.DeepCopy()
	restore := func(list *corev1.ResourceList, from corev1.ResourceList) {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			delete(*list, name)
			if q, ok := from[name]; ok {
				if *list == nil {
					*list = corev1.ResourceList{}
				}
				(*list)[name] = q
			}
		}
	}
	restore(&out.Limits, was.Limits)
	restore(&out.Requests, was.Requests)
	return out
}
