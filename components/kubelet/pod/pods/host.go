package pods

import (
	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/usernamespaces"
	"hyperkube/internal/pod/podutil"
)

// host has the configuration and the dependencies that all workers share.
type host struct {
	Config
	cgroups CgroupNames
	weights *qosWeights
}

// newHost creates the host of the workers of one Manager.
func newHost(cfg Config) *host {
	if cfg.Registry == nil {
		cfg.Registry = NewRegistry()
	}
	if cfg.Platform == nil {
		cfg.Platform = &Platform{}
	}
	if cfg.Security.Users == nil {
		cfg.Security.Users = &usernamespaces.Allocator{}
	}
	h := &host{Config: cfg, cgroups: CgroupNames{Root: cfg.Limits.Root, Platform: cfg.Platform}}
	h.weights = &qosWeights{limits: &h.Limits, names: h.cgroups, registry: cfg.Registry, log: cfg.Log, metrics: cfg.Metrics}
	return h
}

func (h *host) event(pod *v1.Pod, container string, warning bool, reason, message string) {
	kind := v1.EventTypeNormal
	if warning {
		kind = v1.EventTypeWarning
	}
	h.Events.Event(reference(pod, container), kind, reason, message)
}

// podWarner returns a function that emits Warning events for a pod.
func (h *host) podWarner(pod *v1.Pod) func(reason, message string) {
	return func(reason, message string) { h.event(pod, "", true, reason, message) }
}

// reference returns the reference to a pod, or to one of its containers, for events.
func reference(pod *v1.Pod, container string) *v1.ObjectReference {
	ref := &v1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
	if container != "" {
		ref.FieldPath = fieldPath(pod, container)
	}
	return ref
}

func fieldPath(pod *v1.Pod, name string) string {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return "spec.containers{" + name + "}"
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return "spec.initContainers{" + name + "}"
		}
	}
	return "spec.ephemeralContainers{" + name + "}"
}

// Annotations of static pods.
const (
	AnnotationSource = "kubernetes.io/config.source"
	AnnotationHash   = "kubernetes.io/config.hash"
	annotationMirror = v1.MirrorPodAnnotationKey
)

// IsStatic reports whether the pod comes from a file or URL instead of the API.
func IsStatic(pod *v1.Pod) bool {
	src, ok := pod.Annotations[AnnotationSource]
	return ok && src != "api"
}

// IsMirror reports whether the pod is a mirror pod.
func IsMirror(pod *v1.Pod) bool { _, ok := pod.Annotations[annotationMirror]; return ok }

// IsCritical reports whether a pod is critical: it can preempt other pods and is not evicted.
func IsCritical(pod *v1.Pod) bool {
	return IsStatic(pod) || IsMirror(pod) || podutil.Priority(pod) >= podutil.SystemCritical
}
