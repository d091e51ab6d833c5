// Package pods runs the pods of the node. Each pod has a worker goroutine, which is woken by
// changes of the desired pods, by runtime events and by probe results. Package podstate computes
// what to do; this package does it.
package pods

import (
	"context"
	"log/slog"
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
)

// Config is the configuration and the dependencies of a Manager, grouped by topic. It is not
// modified after NewManager. Callers must not modify what its functions return.
type Config struct {
	Log *slog.Logger
	// Registry has the pods. NewManager creates one if it is nil.
	Registry *Registry
	// Platform has the detected properties of the runtime and the kernel. Nil means the zero value.
	Platform *Platform
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

	Node     Node
	Logs     Logs
	Images   Images
	Limits   Limits
	Security Security

	Collaborators
	// CrashMax is the maximum restart back-off after crashes. Zero means upstream's default.
	CrashMax time.Duration
}

// Collaborators are the parts of the kubelet that take part in the lifecycle of pods. Each may be
// nil. Their methods must be safe for concurrent use.
type Collaborators struct {
	// Admitter decides which pods run. If it is nil, all pods are admitted.
	Admitter Admitter
	// Resources allocates resources to containers. If it is nil, containers get none.
	Resources ResourceManager
	// Claims prepares the devices of ResourceClaims. If it is nil, ResourceClaims of pods are
	// ignored.
	Claims ResourceClaims
	// Network reports whether pods can be connected to the pod network. If it is nil, they can.
	Network Network
	// Policies enforces network policies. If it is nil, containers do not wait for them.
	Policies NetworkPolicies
	// Observer is notified of changes of pods.
	Observer Observer
	// Mirror returns the mirror pods of static pods, which their status is written to. If it is
	// nil, the status of static pods is not written.
	Mirror Mirror
}

// Admitter decides whether pods that are new to the node may run, and preempts other pods for the resize of a
// critical pod.
type Admitter interface {
	// Admit decides whether a pod that is new to the node may run. A non-nil Verdict rejects it.
	// others are the other pods that have not terminated. When ctx is done the kubelet is shutting
	// down. Admit is called without locks held and may block.
	Admit(ctx context.Context, pod *v1.Pod, others []*v1.Pod) *Verdict
	// PreemptForResize preempts other pods for the resize of a critical pod, and waits until they have
	// terminated or ctx is done. message is the reason for which the resize would be deferred. freed is true
	// if resources were freed; otherwise why is the reason for which the resize is deferred.
	PreemptForResize(ctx context.Context, pod *v1.Pod, message string) (freed bool, why string)
}

// ResourceManager allocates devices, CPUs and memory of the node to containers.
type ResourceManager interface {
	// PrepareContainer adds allocated resources to a container's configuration, such as devices and
	// exclusive CPUs. If it returns an error, the container is not created.
	PrepareContainer(ctx context.Context, pod *v1.Pod, c *v1.Container, cfg *runtimeapi.ContainerConfig) error
	// ContainerStarted is called after a container was started, with the configuration that it was
	// created from.
	ContainerStarted(ctx context.Context, pod *v1.Pod, container, id string, cfg *runtimeapi.ContainerConfig)
	// PodTerminated is called when no process of the pod runs any more and its volumes are removed, so that
	// its resources can be allocated to other pods. It may be called twice.
	PodTerminated(pod types.UID)
	// DeviceHealth returns the health of a container's devices.
	DeviceHealth(pod *v1.Pod, container string) []v1.ResourceStatus
}

// ResourceClaims prepares and unprepares the devices of pods' ResourceClaims.
type ResourceClaims interface {
	// Prepare prepares the pod's claims before its containers are created. It may be called again for the
	// same pod. If it returns an error, the start of the pod is retried.
	Prepare(ctx context.Context, pod *v1.Pod) error
	// Release releases the claims of a pod of which no process runs any more. It is retried until it
	// succeeds.
	Release(ctx context.Context, pod types.UID) error
}

// Network reports why pods cannot be connected to the pod network, so that their start waits and an event names the
// cause.
type Network interface {
	// NetworkProblem returns why pods cannot be connected to the pod network now, or "" if they
	// can.
	NetworkProblem() string
}

// NetworkPolicies is the component that enforces NetworkPolicies on this node.
type NetworkPolicies interface {
	// Expect returns when the network policies of a pod are in force for its addresses. If it
	// returns an error, containers are not started.
	Expect(ctx context.Context, pod *v1.Pod, ips []string) error
}

// Observer is notified of changes of pods. Its methods must not block. Their arguments are shared
// and must not be modified.
type Observer interface {
	// Updated is called when a pod or its status has changed.
	Updated(pod *v1.Pod, now *v1.PodStatus)
	// Removed is called when a pod is removed from this node.
	Removed(pod *v1.Pod)
}

// Mirror finds the mirror pods of static pods: the API objects that show static pods in the API.
type Mirror interface {
	// Of returns the mirror pod of a static pod, or nil if there is none.
	Of(pod *v1.Pod) *v1.Pod
}

// Node provides what pods need to know about the node: DNS configuration, addresses, the Node object, allocatable
// resources and Services.
type Node struct {
	DNS dnsconf.Node
	// IPs returns the node's IP addresses, the primary one first.
	IPs func() []string
	// Object returns the Node object, or nil before it is known.
	Object func() *v1.Node
	// Allocatable returns the allocatable resources of the node.
	Allocatable func() v1.ResourceList
	// Services returns all services. With wait it blocks until the services are synced, otherwise
	// it returns those that are known. If it is nil, there are none.
	Services func(ctx context.Context, wait bool) ([]*v1.Service, error)
}

// Images provides the images of containers: the puller, and the node's own credentials for registries.
type Images struct {
	Puller *images.Puller
	// Providers are the credential providers, and DockerConfigs are paths of Docker configuration
	// files with credentials. Both may be nil.
	Providers     *pullcredentials.Providers
	DockerConfigs []string
}

// Limits configures which cgroups pods have and which of their resource limits are enforced.
type Limits struct {
	// Cgroups may be nil. Pods then have no cgroups.
	Cgroups Cgroups
	// Root is the parent cgroup of kubepods, "" or "/…".
	Root string
	// CPUQuota enforces CPU limits in each CPUQuotaPeriod.
	CPUQuota       bool
	CPUQuotaPeriod time.Duration
	// HasExclusiveCPUs reports whether a container has exclusive CPUs and therefore no CPU quota. It may be
	// nil.
	HasExclusiveCPUs func(pod types.UID, container string) bool
	// StaticCPUs: containers may have exclusive CPUs, which cannot be resized. StaticMemory is the
	// same for memory.
	StaticCPUs, StaticMemory bool
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
	// Swap returns the swap, in bytes, that all Burstable pods may use together. If it is nil, or
	// Platform has no swap accounting, swap is not configured. LimitedSwap distributes that swap,
	// even if it is zero.
	Swap        func() int64
	LimitedSwap bool
	// Hugepages are the page sizes of which the machine has huge pages, such as "2Mi".
	Hugepages []string
}

// Cgroups creates and removes the cgroups of pods. A cgroup is named by its path from the root of the
// hierarchy.
type Cgroups interface {
	Create(cgroup string, r cgroup.Resources) error
	Set(cgroup string, r cgroup.Resources) error
	Stats(cgroup string) (cgroup.Stats, error)
	Remove(ctx context.Context, cgroup string) error
}

// Security configures the defaults for the privileges of containers: seccomp profiles, sysctls and user namespaces.
type Security struct {
	// SeccompDefault: containers without a seccomp profile use RuntimeDefault.
	SeccompDefault bool
	// SeccompRoot is the directory of Localhost profiles.
	SeccompRoot string
	// Sysctls are set in all pods that do not set them.
	Sysctls map[string]string
	// Users allocates user namespaces of pods. Nil means one without ranges.
	Users *usernamespaces.Allocator
}
