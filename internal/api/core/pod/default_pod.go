package pod

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// Default sets the defaults of a pod: those of all pod specs, and those that pod templates do not
// have, such as requests from limits and host ports of pods in the host network.
func Default(p *corev1.Pod) {
	// Stored templates may contain a negative grace period. Their pods get a period of one second.
	if grace := p.Spec.TerminationGracePeriodSeconds; grace != nil && *grace < 0 {
		p.Spec.TerminationGracePeriodSeconds = new(int64(1))
	}
	for i := range p.Spec.Containers {
		requestsFromLimits(&p.Spec.Containers[i].Resources)
	}
	for i := range p.Spec.InitContainers {
		requestsFromLimits(&p.Spec.InitContainers[i].Resources)
	}
	if p.Spec.HostNetwork {
		defaultHostPorts(p.Spec.Containers)
		defaultHostPorts(p.Spec.InitContainers)
	}
	api.SetDefault(&p.Spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	defaultSpec(&p.Spec)
	// Old kubelets only know podIP, so it takes precedence over podIPs.
	switch s := &p.Status; {
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	}
}

// defaultHostPorts sets missing host ports to the container ports.
func defaultHostPorts(containers []corev1.Container) {
	for i := range containers {
		for j := range containers[i].Ports {
			api.SetIfZero(&containers[i].Ports[j].HostPort, containers[i].Ports[j].ContainerPort)
		}
	}
}

// requestsFromLimits sets missing requests of resources to their limits.
func requestsFromLimits(r *corev1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = make(corev1.ResourceList, len(r.Limits))
	}
	fillFrom(r.Requests, r.Limits, nil)
}

// fillFrom copies the quantities of resources that list lacks from the list from. It only copies
// resources for which may returns true; a nil may means all.
func fillFrom(list, from corev1.ResourceList, may func(corev1.ResourceName) bool) {
	for name, q := range from {
		if _, ok := list[name]; !ok && (may == nil || may(name)) {
			list[name] = q.DeepCopy()
		}
	}
}

// defaultPodResources sets missing pod-level resources, if the pod has any: limits of huge pages
// from the containers' limits, requests from the containers' requests or else from the pod's
// limits, and limits from the containers' limits if each container has one. It is called for a new
// pod after admission has added its containers, and for a resize. (KEP-2837)
func defaultPodResources(p *corev1.Pod) {
	r := p.Spec.Resources
	if r == nil || len(r.Limits)+len(r.Requests) == 0 {
		return
	}
	whole := &corev1.Pod{Spec: corev1.PodSpec{Containers: p.Spec.Containers, InitContainers: p.Spec.InitContainers}}
	requests, limits := maps.Clone(r.Requests), maps.Clone(r.Limits)
	if requests == nil {
		requests = corev1.ResourceList{}
	}
	if limits == nil {
		limits = corev1.ResourceList{}
	}
	ofContainers := resourcehelper.AggregateContainerLimits(whole, resourcehelper.PodResourcesOptions{})
	fillFrom(limits, ofContainers, func(name corev1.ResourceName) bool {
		_, requested := requests[name]
		return validate.IsHugePage(name) && !requested
	})
	fillFrom(requests, resourcehelper.AggregateContainerRequests(whole, resourcehelper.PodResourcesOptions{}), func(name corev1.ResourceName) bool {
		return resourcehelper.IsSupportedPodLevelResource(name) && validate.IsOvercommitAllowed(name)
	})
	fillFrom(requests, limits, resourcehelper.IsSupportedPodLevelResource)
	for name, request := range requests {
		limit, ok := ofContainers[name]
		if _, set := limits[name]; set || !ok || !resourcehelper.IsSupportedPodLevelResource(name) || !allLimited(&p.Spec, name) {
			continue
		}
		if request.Cmp(limit) > 0 {
			limit = request
		}
		limits[name] = limit.DeepCopy()
	}
	if len(requests) > 0 {
		r.Requests = requests
	}
	if len(limits) > 0 {
		r.Limits = limits
	}
}

// allLimited reports whether every regular and init container of a pod has a limit for the resource
// name.
func allLimited(spec *corev1.PodSpec, name corev1.ResourceName) bool {
	lacks := func(c corev1.Container) bool {
		_, ok := c.Resources.Limits[name]
		return !ok
	}
	return !slices.ContainsFunc(spec.Containers, lacks) && !slices.ContainsFunc(spec.InitContainers, lacks)
}

// keepPodResources copies the stored pod-level resources to an updated pod without any, because
// clients that do not support them omit them.
func keepPodResources(p, old *corev1.Pod) {
	if p.Spec.Resources == nil && old.Spec.Resources != nil {
		p.Spec.Resources = old.Spec.Resources.DeepCopy()
	}
}
