package pods

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/pod/usernamespaces"
	"hyperkube/internal/pod/podutil"
)

// host has what the workers of all pods share: the configuration and dependencies of the Manager, and objects that
// compute or act without the state of a pod, such as the translation of pods to CRI requests.
type host struct {
	Config
	*podEvents
	cgroups CgroupNames
	limits  *limiter
	weights *qosWeights
	configs *translator
	logs    *logFiles
	resizer *resizer
	// options are the options of the machines of all pods. HasObject is set per pod.
	options podmachine.Options
}

// newHost returns the host that all workers of one Manager share. It sets the fields of cfg that may be nil to
// their defaults, such as a Registry without pods.
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
	h := &host{Config: cfg, podEvents: &podEvents{cfg.Events}, cgroups: CgroupNames{Root: cfg.Limits.Root, Platform: cfg.Platform}}
	h.limits = &limiter{Limits: cfg.Limits, platform: cfg.Platform, allocatable: cfg.Node.Allocatable}
	h.weights = &qosWeights{limits: &h.Limits, names: h.cgroups, registry: cfg.Registry, log: cfg.Log, metrics: cfg.Metrics}
	h.logs = &logFiles{Logs: cfg.Logs, log: cfg.Log, platform: cfg.Platform}
	h.configs = &translator{
		podEvents: h.podEvents, cri: cfg.CRI, kube: cfg.Kube, objects: cfg.Objects, volumes: cfg.Volumes, resources: cfg.Resources,
		node: cfg.Node, security: cfg.Security, logs: cfg.Logs, cgroups: h.cgroups, limits: h.limits,
	}
	h.resizer = &resizer{
		limits: h.limits, cgroups: h.cgroups, weights: h.weights, cri: cfg.CRI, registry: cfg.Registry, admitter: cfg.Admitter, metrics: cfg.Metrics,
	}
	h.options = podmachine.Options{CrashMax: cfg.CrashMax, Limits: h.limits.containerLimits}
	return h
}

// podEvents emits events about pods.
type podEvents struct{ events record.EventRecorder }

// event emits a Normal or Warning event about a pod or, unless container is "", about one of its containers.
func (e *podEvents) event(pod *v1.Pod, container string, warning bool, reason, message string) {
	kind := v1.EventTypeNormal
	if warning {
		kind = v1.EventTypeWarning
	}
	e.events.Event(reference(pod, container), kind, reason, message)
}

// podWarner returns a function that emits Warning events with a reason and a message for the pod, for code that has
// no access to events.
func (e *podEvents) podWarner(pod *v1.Pod) func(reason, message string) {
	return func(reason, message string) { e.event(pod, "", true, reason, message) }
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

// fieldPath returns the path of a container in the pod spec, for the field involvedObject of events. An
// unknown name is assumed to be that of an ephemeral container.
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

// AnnotationSource is the annotation that names the source of a pod ("file", "http" or "api"), and AnnotationHash
// the annotation with the UID of a static pod, which its mirror pod also has. annotationMirror marks mirror pods.
const (
	AnnotationSource = "kubernetes.io/config.source"
	AnnotationHash   = "kubernetes.io/config.hash"
	annotationMirror = v1.MirrorPodAnnotationKey
)

// IsStatic reports whether the pod comes from a manifest file or a URL instead of the API.
func IsStatic(pod *v1.Pod) bool {
	src, ok := pod.Annotations[AnnotationSource]
	return ok && src != "api"
}

// IsMirror reports whether the pod is a mirror pod: the API object that shows a static pod in the API. Mirror
// pods are not run.
func IsMirror(pod *v1.Pod) bool { _, ok := pod.Annotations[annotationMirror]; return ok }

// IsCritical reports whether a pod is critical: it can preempt other pods and is not evicted.
func IsCritical(pod *v1.Pod) bool {
	return IsStatic(pod) || IsMirror(pod) || podutil.Priority(pod) >= podutil.SystemCritical
}
