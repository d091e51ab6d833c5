// Package pods runs the pods of the node. Each pod has a worker goroutine, which is woken by
// changes of the desired pods, by runtime events and by probe results. Package podstate computes
// what to do; this package does it.
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

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/dnsconf"
	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/probe"
	"hyperkube/components/kubelet/pod/pullcredentials"
	"hyperkube/components/kubelet/pod/usernamespaces"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/pod/podutil"
)

// Cgroups creates and removes the cgroups of pods.
type Cgroups interface {
	Create(cgroup string, r cgroup.Resources) error
	Set(cgroup string, r cgroup.Resources) error
	Stats(cgroup string) (cgroup.Stats, error)
	Remove(ctx context.Context, cgroup string) error
}

// Host is the configuration and the dependencies that all pods share, grouped by topic. It is not
// modified after it is set up. Callers must not modify what its functions return.
type Host struct {
	Log      *slog.Logger
	NodeName string
	CRI      *cri.Client
	// Kube is nil without an API server. Pods then have no status in the API.
	Kube    kubernetes.Interface
	Objects *objectcache.Store
	Volumes *volume.Set
	Prober  *probe.Prober
	Events  record.EventRecorder
	// Metrics counts operations. It may be nil.
	Metrics *telemetry.Metrics
	// Tracer creates spans of a pod's operations. If it is nil, there are no spans.
	Tracer trace.Tracer
	// Mirror returns the mirror pods of static pods, which their status is written to. If it is
	// nil, the status of static pods is not written.
	Mirror Mirror
	// Claims prepares the devices of ResourceClaims. If it is nil, ResourceClaims of pods are
	// ignored.
	Claims ResourceClaims

	Images   Images
	Limits   Limits
	Security Security
	Resizing Resizing
	Hooks    Hooks

	DNS dnsconf.Node
	// NodeIPs returns the node's IP addresses, the primary one first.
	NodeIPs func() []string
	// Node returns the Node object, or nil before it is known.
	Node func() *v1.Node
	// Allocatable returns the allocatable resources of the node.
	Allocatable func() v1.ResourceList
	// Services returns all services. With wait it blocks until the services are synced, otherwise
	// it returns those that are known.
	Services func(ctx context.Context, wait bool) ([]*v1.Service, error)
	// RuntimeName is the prefix of container IDs in the API.
	RuntimeName string
	// PodLogs and ContainerLogs are the log directories.
	PodLogs, ContainerLogs string
	// DeadContainers configures how many exited containers are retained.
	DeadContainers DeadContainers
	// CrashMax is the maximum restart back-off after crashes. Zero means upstream's default.
	CrashMax time.Duration
}

// Images configures the source of container images.
type Images struct {
	Puller *images.Puller
	// Providers are the credential providers, and DockerConfigs are paths of Docker configuration
	// files with credentials. Both may be nil.
	Providers     *pullcredentials.Providers
	DockerConfigs []string
}

// Limits configures the cgroup limits of pods.
type Limits struct {
	// Cgroups may be nil. Pods then have no cgroups.
	Cgroups Cgroups
	// Root is the parent cgroup of kubepods, "" or "/…".
	Root string
	// Systemd: cgroups are named as systemd slices, as the runtime requires. It is set before the
	// first pod runs, but cgroup statistics may be read before.
	Systemd atomic.Bool
	// CPUQuota enforces CPU limits in each CPUQuotaPeriod.
	CPUQuota       bool
	CPUQuotaPeriod time.Duration
	// HasExclusiveCPUs reports whether a container has exclusive CPUs and therefore no CPU quota. It may be
	// nil.
	HasExclusiveCPUs func(pod types.UID, container string) bool
	// Pids is the maximum number of processes of a pod. 0 or less means no limit.
	Pids int64
	// MemoryCapacity is the machine's memory in bytes.
	MemoryCapacity int64
	// WholeOOMKill makes the kernel kill all processes of a container that exceeds its memory
	// limit, on cgroup v2.
	WholeOOMKill bool
	// MemoryQoS sets memory.min and memory.low on cgroup v2: to the requests with Tiered, otherwise
	// to zero.
	MemoryQoS, Tiered bool
	// Throttling is the fraction of the range between the memory request and the limit at which
	// memory.high throttles a container, on cgroup v2. 0 disables throttling.
	Throttling float64
	// Swap returns the swap, in bytes, that all Burstable pods may use together. If it is nil, swap
	// is not configured. LimitedSwap distributes that swap, even if it is zero.
	Swap        func() int64
	LimitedSwap bool
	// Hugepages are the page sizes of which the machine has huge pages, such as "2Mi".
	Hugepages []string
}

// Security configures the privileges of containers.
type Security struct {
	// SeccompDefault: containers without a seccomp profile use RuntimeDefault.
	SeccompDefault bool
	// SeccompRoot is the directory of Localhost profiles.
	SeccompRoot string
	// Sysctls are set in all pods that do not set them.
	Sysctls map[string]string
	// AllowedUnsafeSysctls are the unsafe sysctls that pods may set. A trailing * is a wildcard.
	AllowedUnsafeSysctls []string
	// Users allocates user namespaces of pods.
	Users usernamespaces.Allocator
}

// Resizing configures the resize of pods.
type Resizing struct {
	// StaticCPUs: containers may have exclusive CPUs, which cannot be resized. StaticMemory is the
	// same for memory.
	StaticCPUs, StaticMemory bool
	// Fits returns why a resized pod does not fit on the node; reason is empty if it fits.
	// NewManager sets it.
	Fits func(pod *v1.Pod) (reason, message string)
	// Preempt preempts other pods for the resize of a critical pod, and waits until they have
	// terminated or ctx is done. message is the reason for which the resize would be deferred. It
	// reports whether resources were freed, otherwise why the resize is deferred. It may be nil.
	Preempt func(ctx context.Context, pod *v1.Pod, message string) (made bool, why string)
	// Resized is called when a pod has been resized. NewManager sets it.
	Resized func()
}

// Hooks are called during the lifecycle of a pod. Each may be nil.
type Hooks struct {
	// NetworkProblem returns why pods cannot be connected to the pod network now, or "" if they
	// can.
	NetworkProblem func() string
	// Network returns when the network policies of a pod are in force for its addresses. If it
	// returns an error, containers are not started.
	Network func(ctx context.Context, pod *v1.Pod, ips []string) error
	// Extend adds allocated resources to a container's configuration, such as devices and exclusive
	// CPUs. If it returns an error, the container is not created.
	Extend func(ctx context.Context, pod *v1.Pod, c *v1.Container, cfg *runtimeapi.ContainerConfig) error
	// Started is called after a container was started, with the configuration that it was created
	// from.
	Started func(ctx context.Context, pod *v1.Pod, container, id string, cfg *runtimeapi.ContainerConfig)
	// DeviceHealth returns the health of a container's devices.
	DeviceHealth func(pod *v1.Pod, container string) []v1.ResourceStatus
	// Terminated is called when nothing of a pod runs any more; it may be called twice. It must not call
	// the Manager.
	Terminated func(pod types.UID)
	// StatusChanged is called when a pod or its status has changed, and Gone when the pod is removed from
	// this node. They must not block or call the Manager. Their arguments are shared and must not
	// be modified.
	StatusChanged func(pod *v1.Pod, now *v1.PodStatus)
	Removed       func(pod *v1.Pod)
	// updateWeights is called when the total requests of all pods may have changed. NewManager sets it.
	updateWeights func()
}

// ResourceClaims prepares and unprepares the devices of pods' ResourceClaims.
type ResourceClaims interface {
	// Prepare prepares the pod's claims. It may be called again.
	Prepare(ctx context.Context, pod *v1.Pod) error
	// Release is called when nothing of the pod runs any more. It is retried until it succeeds.
	Release(ctx context.Context, pod types.UID) error
}

// Mirror finds mirror pods.
type Mirror interface {
	// Of returns the mirror pod of a static pod, or nil if there is none.
	Of(pod *v1.Pod) *v1.Pod
}

func (h *Host) event(pod *v1.Pod, container string, warning bool, reason, message string) {
	kind := v1.EventTypeNormal
	if warning {
		kind = v1.EventTypeWarning
	}
	h.Events.Event(reference(pod, container), kind, reason, message)
}

// podWarner returns a function that emits Warning events for a pod.
func (h *Host) podWarner(pod *v1.Pod) func(reason, message string) {
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
