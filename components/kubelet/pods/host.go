// Package pods runs the pods of the node: one goroutine a pod, woken by what
// is wanted, by what the runtime reports and by what probes find. What to do is
// decided by package podstate; this package does it.
package pods

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/credentials"
	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/dnsconf"
	"hyperkube/components/kubelet/images"
	"hyperkube/components/kubelet/objects"
	"hyperkube/components/kubelet/probe"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/components/kubelet/usernamespaces"
	"hyperkube/components/kubelet/volume"
	"hyperkube/internal/cgroup"
	"hyperkube/internal/podfacts"
)

// Cgroups makes and removes the cgroups of pods.
type Cgroups interface {
	Create(cgroup string, r cgroup.Resources) error
	Set(cgroup string, r cgroup.Resources) error
	Stats(cgroup string) (cgroup.Stats, error)
	Remove(ctx context.Context, cgroup string) error
}

// Host is all that pods share, what belongs together in a part of its own. It is filled
// once and not changed afterwards; what its functions return must not be changed by the
// caller.
type Host struct {
	Log      *slog.Logger
	NodeName string
	CRI      *cri.Client
	// Kube may be nil: then there is no API server, and pods have no status
	// there.
	Kube    kubernetes.Interface
	Objects *objects.Store
	Volumes *volume.Set
	Prober  *probe.Prober
	Events  record.EventRecorder
	// Metrics counts what is done; nil: nothing does.
	Metrics *telemetry.Metrics
	// Tracer tells how long the pieces of a pod's work take; nil: nobody is told.
	Tracer trace.Tracer
	// Mirror reports the status of pods that do not come from the API. Nil:
	// they have none.
	Mirror Mirror
	// Claims makes the devices of resource claims ready; nil: pods with such
	// claims run without.
	Claims ResourceClaims

	Images   Images
	Limits   Limits
	Security Security
	Resizing Resizing
	Hooks    Hooks

	DNS dnsconf.Node
	// NodeIPs returns the node's addresses, the primary one first.
	NodeIPs func() []string
	// Node returns the node's API object; nil before it is known.
	Node func() *v1.Node
	// Allocatable is the node's.
	Allocatable func() v1.ResourceList
	// Services returns all services: with wait once they are known, else those
	// that are.
	Services func(ctx context.Context, wait bool) ([]*v1.Service, error)
	// RuntimeName begins container IDs in the API.
	RuntimeName string
	// PodLogs and ContainerLogs are the directories of logs.
	PodLogs, ContainerLogs string
	// Dead is which containers that have ended are kept.
	Dead DeadContainers
	// CrashMax bounds the waiting for a restart after crashes; zero is upstream's.
	CrashMax time.Duration
}

// Images is where containers' images come from.
type Images struct {
	Puller *images.Puller
	// Providers are asked for credentials of images, and DockerConfigs are files
	// that have some; both may be nil.
	Providers     *credentials.Providers
	DockerConfigs []string
}

// Limits is what pods are held to by cgroups.
type Limits struct {
	// Cgroups may be nil: pods then have no cgroups of their own.
	Cgroups Cgroups
	// Root is above kubepods, "" or "/…".
	Root string
	// Systemd: cgroups are named as slices of systemd, as the runtime wants them.
	// It is set before the first pod is run; the cgroups' stats are asked for before.
	Systemd atomic.Bool
	// CPUQuota: CPU limits are enforced, in each CPUQuotaPeriod.
	CPUQuota       bool
	CPUQuotaPeriod time.Duration
	// OwnCPUs tells whether a container has CPUs of its own, which no quota
	// holds back. May be nil.
	OwnCPUs func(pod types.UID, container string) bool
	// Pids is the most processes of a pod; 0 or less: no limit.
	Pids int64
	// MemoryCapacity is the machine's memory, in bytes.
	MemoryCapacity int64
	// WholeOOMKill: of a container on cgroup version 2 that has no memory left
	// the kernel kills all processes.
	WholeOOMKill bool
	// MemoryQoS: on cgroup version 2 it is said how much memory is kept for whom, with
	// Tiered what was asked for, else none.
	MemoryQoS, Tiered bool
	// Throttling is how much of what a container may use above what it asks for
	// it gets before it is slowed down, on cgroup version 2; 0: it is not.
	Throttling float64
	// Swap is how much swap the machine has for burstable pods in all, in
	// bytes. Nil: nothing is said of swap. LimitedSwap: they have what there is,
	// be it none.
	Swap        func() int64
	LimitedSwap bool
	// Hugepages are the sizes of which the machine has any, as in "2Mi".
	Hugepages []string
}

// Security is what containers may do to the machine.
type Security struct {
	// SeccompDefault: containers that say nothing get RuntimeDefault.
	SeccompDefault bool
	// SeccompRoot is where Localhost profiles are.
	SeccompRoot string
	// Sysctls are set in all pods that do not say otherwise.
	Sysctls map[string]string
	// AllowedUnsafeSysctls may be set by pods; a trailing * matches the rest.
	AllowedUnsafeSysctls []string
	// Users are of pods with user namespaces of their own.
	Users usernamespaces.Allocator
}

// Resizing is what has a say when pods are resized.
type Resizing struct {
	// StaticCPUs: containers may have CPUs of their own, which cannot be resized.
	// StaticMemory: the same of memory.
	StaticCPUs, StaticMemory bool
	// Fits tells why a resized pod does not fit on the node, empty if it does;
	// NewManager fills it.
	Fits func(pod *v1.Pod) (reason, message string)
	// MakeRoom ends other pods for a critical one whose resize is to be put off with
	// the message, and waits for their end, or until ctx ends. It tells whether that was
	// done, or why the resize is put off. May be nil.
	MakeRoom func(ctx context.Context, pod *v1.Pod, message string) (made bool, why string)
	// Resized is called when a pod has been resized; NewManager fills it.
	Resized func()
}

// Hooks are asked, or told, as a pod goes through its life. Each may be nil.
type Hooks struct {
	// NetworkProblem tells why pods of their own network cannot be connected now;
	// empty: they can.
	NetworkProblem func() string
	// Network returns once what rules a pod's network holds for its addresses; its
	// error keeps containers from being started.
	Network func(ctx context.Context, pod *v1.Pod, ips []string) error
	// Extend adds to a container what is beyond the pod's own words: devices,
	// CPUs of its own. Its error keeps the container from being made.
	Extend func(ctx context.Context, pod *v1.Pod, c *v1.Container, cfg *runtimeapi.ContainerConfig) error
	// Started is called with a container that was just started and what it was made
	// of.
	Started func(ctx context.Context, pod *v1.Pod, container, id string, cfg *runtimeapi.ContainerConfig)
	// DeviceHealth tells how a container's devices are.
	DeviceHealth func(pod *v1.Pod, container string) []v1.ResourceStatus
	// Ended is called when nothing of a pod runs any more, maybe twice. It must not
	// call the Manager.
	Ended func(pod types.UID)
	// Told is called with a pod and its newest status when either has changed, and
	// Gone when the pod is not on this node any more. They must not block, nor call
	// the Manager; what they are given is shared.
	Told func(pod *v1.Pod, now *v1.PodStatus)
	Gone func(pod *v1.Pod)
	// weigh is called when what pods ask for together may have changed; NewManager
	// fills it.
	weigh func()
}

// ResourceClaims is how the devices of pods' resource claims come and go.
type ResourceClaims interface {
	// Prepare makes them ready; it may be called again.
	Prepare(ctx context.Context, pod *v1.Pod) error
	// Release is called when nothing of the pod runs any more, until it works.
	Release(ctx context.Context, pod types.UID) error
}

// Mirror finds the API's object that stands for a static pod.
type Mirror interface {
	// Of returns the mirror pod of a static pod, or nil while there is none.
	Of(pod *v1.Pod) *v1.Pod
}

func (h *Host) event(pod *v1.Pod, container string, warning bool, reason, message string) {
	kind := v1.EventTypeNormal
	if warning {
		kind = v1.EventTypeWarning
	}
	h.Events.Event(reference(pod, container), kind, reason, message)
}

// warns is event for what else tells of a pod.
func (h *Host) warns(pod *v1.Pod) func(reason, message string) {
	return func(reason, message string) { h.event(pod, "", true, reason, message) }
}

// reference names a pod, or one of its containers, as events do.
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

// Annotations of pods that do not come from the API.
const (
	AnnotationSource = "kubernetes.io/config.source"
	AnnotationHash   = "kubernetes.io/config.hash"
	annotationMirror = v1.MirrorPodAnnotationKey
)

// IsStatic tells whether the pod comes from a file, not from the API.
func IsStatic(pod *v1.Pod) bool {
	src, ok := pod.Annotations[AnnotationSource]
	return ok && src != "api"
}

// IsMirror tells whether the pod is the API's stand-in for a static pod.
func IsMirror(pod *v1.Pod) bool { _, ok := pod.Annotations[annotationMirror]; return ok }

// IsCritical tells a pod that the node cannot do without: others make room for it, and
// nobody evicts it.
func IsCritical(pod *v1.Pod) bool {
	return IsStatic(pod) || IsMirror(pod) || podfacts.Priority(pod) >= podfacts.SystemCritical
}
