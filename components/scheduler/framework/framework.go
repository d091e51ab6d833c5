// Package framework defines the interfaces of scheduler plugins. Extension points and plugin names
// are upstream's. The Go interfaces are specific to this project, so that a filter evaluates a pod
// once and then each node with a closure, and so that they do not change with Kubernetes releases.
// https://kubernetes.io/docs/concepts/scheduling-eviction/scheduling-framework/
package framework

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/scheduler/state"
)

// MaxScore is the highest score that a plugin may give a node. The lowest is 0.
const MaxScore = 100

// Cycle is one attempt to find a node for a pod. Plugins get it as their input. They must not modify it, and are called
// one at a time.
type Cycle struct {
	Pod   *state.Pod
	State *state.State
	// Namespaces returns the labels of a namespace, or nil if it is unknown.
	Namespaces func(name string) map[string]string
	// SpreadSelector returns the selector of a pod's services and owners, which default spreading
	// uses. It returns an empty selector if there are none.
	SpreadSelector func(pod *corev1.Pod) labels.Selector
	// Volumes is the view of storage; if nil, pods' volumes are not checked.
	Volumes Volumes
	// Devices is the view of devices; if nil, pods' resource claims are not checked.
	Devices Devices
	// Buffers is memory that cycles reuse; if nil, the cycle allocates memory.
	Buffers *Buffers
}

// Buffers contains slices that grow with the number of nodes and that cycles reuse to avoid allocations.
type Buffers struct {
	Fitting      []*state.Node
	Sums, Scores []int64
}

// Reason is one reason why a pod does not fit on a node.
type Reason struct {
	// Text is the text for events, for example "Insufficient cpu".
	Text string
	// Unresolvable is true if preemption cannot help.
	Unresolvable bool
}

// Plugin is the part of the interface that all plugins have. Name returns the name in configuration files, which is
// that of upstream's plugin.
type Plugin interface{ Name() string }

// Check is the result of a filter for the pod that is being scheduled: how to evaluate each node. The scheduler calls
// its functions in the same cycle only, one at a time.
type Check struct {
	// Node returns why a node does not fit, or nil if it fits.
	Node func(*state.Node) []Reason
	// Moved updates the filter's state after a pod was added to a node (by is 1) or removed from it
	// (by is -1) in this cycle. This is used to evaluate preemption. It is nil if Node depends only
	// on the node itself.
	Moved func(p *state.Pod, n *state.Node, by int64)
	// Failed returns an error that Node has encountered, which means that the pod must not be
	// assigned to any node. It is nil if there are no such errors.
	Failed func() error
	// Refused is the reason why no node fits now, even with preemption; the other fields are then
	// nil.
	Refused string
	// Only contains the names of the nodes that can fit; nil means all.
	Only map[string]bool
}

// Filter is implemented by plugins that exclude nodes. It combines upstream's PreFilter and Filter extension points.
type Filter interface {
	Plugin
	// Filter evaluates the pod of the cycle and returns how to check a node, or nil if the plugin
	// does not restrict this pod. It returns an error if the pod is invalid.
	Filter(c *Cycle) (*Check, error)
}

// Score is implemented by plugins that rank the nodes that fit.
type Score interface {
	Plugin
	// Score sets a score from 0 to MaxScore for each node in out. It returns false if the plugin
	// has no preference for this pod.
	Score(c *Cycle, nodes []*state.Node, out []int64) bool
}

// PreEnqueue is implemented by plugins that prevent pods from being scheduled before any node is evaluated.
type PreEnqueue interface {
	Plugin
	// PreEnqueue returns why the pod must wait, or "" if it need not.
	PreEnqueue(pod *corev1.Pod) string
}

// Event is a set of changes of the cluster, one bit for each kind. A plugin declares with Waker after which changes a
// pod that it rejected may fit.
type Event uint32

// The kinds of changes in the cluster of which an Event consists, one bit for each.
const (
	NodeAdded Event = 1 << iota
	NodeRemoved
	NodeAllocatableChanged
	NodeLabelsChanged
	NodeTaintsChanged
	// PodRemoved means that a pod was removed from its node.
	PodRemoved
	// PodAdded means that a pod was assigned to a node.
	PodAdded
	// PodLabelsChanged means that the labels of an assigned pod changed, or that it started to
	// terminate and therefore no longer counts for spreading.
	PodLabelsChanged
	// PodScaledDown means that the resource requests of an assigned pod have decreased.
	PodScaledDown
	// ClaimChanged means that a claim of the waiting pod changed.
	ClaimChanged
	// VolumeChanged and the events below mean that any object of the kind changed.
	VolumeChanged
	ClassChanged
	CSIDriverChanged
	CSINodeChanged
	CapacityChanged
	AttachmentChanged
	// DevicesChanged means that slices, classes or taints of devices changed, or that devices were
	// deallocated.
	DevicesChanged
	// NodeFeaturesChanged means that the declared features of a node changed.
	NodeFeaturesChanged
)

// String returns upstream's name of one event in the set, the first, for the label "event" of metrics.
func (e Event) String() string {
	names := []string{
		"NodeAdd", "NodeDelete", "NodeAllocatableChange", "NodeLabelChange", "NodeTaintChange", "AssignedPodDelete", "AssignedPodAdd",
		"PodLabelChange", "PodScaleDown", "PersistentVolumeClaimUpdate", "PersistentVolumeUpdate", "StorageClassUpdate", "CSIDriverUpdate",
		"CSINodeUpdate", "CSIStorageCapacityUpdate", "VolumeAttachmentUpdate", "ResourceSliceUpdate", "UpdateNodeDeclaredFeature",
	}
	for i, name := range names {
		if e&(1<<i) != 0 {
			return name
		}
	}
	return "UnknownEvent"
}

// AnyEvent is the set of all events. It is used for plugins and extenders that do not declare their events.
const AnyEvent = ^Event(0)

// Waker is implemented by filters that declare the events after which a pod that they rejected may fit. The scheduler
// tries an unschedulable pod again only after one of these events. For filters that do not implement Waker, every event
// counts.
type Waker interface {
	Wakes() Event
}

// Normalize scales the scores in out so that the highest becomes MaxScore. If reverse is set, it then inverts them, so
// that a low value becomes a high score.
func Normalize(out []int64, reverse bool) {
	var highest int64
	for _, v := range out {
		highest = max(highest, v)
	}
	for i, v := range out {
		if highest > 0 {
			v = v * MaxScore / highest
		}
		if reverse {
			v = MaxScore - v
		}
		out[i] = v
	}
}
