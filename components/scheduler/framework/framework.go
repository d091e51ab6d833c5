// Package framework is what scheduler plugins implement. The extension points
// and plugin names are upstream's; the interface is our own, so that a filter
// looks at a pod once and then at each node by a closure, and the next release
// of Kubernetes does not change it.
// https://kubernetes.io/docs/concepts/scheduling-eviction/scheduling-framework/
package framework

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/scheduler/state"
)

// MaxScore is the best score of a node; the worst is 0.
const MaxScore = 100

// Cycle is one attempt to find a node for one pod. It is read-only for
// plugins, which run one after the other.
type Cycle struct {
	Pod   *state.Pod
	State *state.State
	// Namespaces tells a namespace's labels, nil if it is not known.
	Namespaces func(name string) map[string]string
	// SpreadSelector tells by what the pod's owners and services select it; it
	// is what default spreading goes by. An empty one: nothing does.
	SpreadSelector func(pod *corev1.Pod) labels.Selector
	// Volumes is what is known of storage; nil: pods' claims are not looked at.
	Volumes Volumes
	// Devices is what is known of devices; nil: pods' resource claims are not
	// looked at.
	Devices Devices
	// Room is what the cycle works in and the next one may use again; nil: it makes
	// its own.
	Room *Room
}

// Room is memory of the size of the cluster that cycles use one after the other.
type Room struct {
	Fitting      []*state.Node
	Sums, Scores []int64
}

// Reason says why a node does not fit.
type Reason struct {
	// Text as it stands in events, e.g. "Insufficient cpu".
	Text string
	// Unresolvable: no eviction of pods can help.
	Unresolvable bool
}

// Plugin has a name, by which configuration speaks of it.
type Plugin interface{ Name() string }

// Check is what one filter makes of the pod of a cycle.
type Check struct {
	// Node tells why a node does not fit, nil when it does.
	Node func(*state.Node) []Reason
	// Moved takes notice that a pod has come to a node (by is 1) or gone from
	// it (by is -1) since the filter was asked, so that what evictions would
	// change can be tried out. It is nil when Node looks at nothing but the
	// node.
	Moved func(p *state.Pod, n *state.Node, by int64)
	// Failed tells what went wrong on a node that Node has refused since, so
	// that the pod must not go to any other either; nil when nothing did. It is
	// nil when nothing can.
	Failed func() error
	// Refused says why no node takes the pod for now, whatever is evicted; the
	// rest is nil then.
	Refused string
	// Only holds the names of the nodes that are worth checking at all; nil
	// means all.
	Only map[string]bool
}

// Filter rules nodes out.
type Filter interface {
	Plugin
	// Filter looks at the pod of the cycle, and returns how to check a
	// node; nil when the pod asks for nothing of this plugin's. An error is
	// a pod that no node will ever take.
	Filter(c *Cycle) (*Check, error)
}

// Score ranks the nodes that fit.
type Score interface {
	Plugin
	// Score writes a score from 0 to MaxScore for each node into out, or
	// returns false when it has no opinion on this pod.
	Score(c *Cycle, nodes []*state.Node, out []int64) bool
}

// PreEnqueue holds pods back before they are tried at all.
type PreEnqueue interface {
	Plugin
	// PreEnqueue returns why the pod must wait, "" when it need not.
	PreEnqueue(pod *corev1.Pod) string
}

// Event is a change of the cluster that may make room for waiting pods.
type Event uint32

// The events there are. They are bits.
const (
	NodeAdded Event = 1 << iota
	NodeRemoved
	NodeAllocatableChanged
	NodeLabelsChanged
	NodeTaintsChanged
	// PodRemoved: a pod is no longer on its node.
	PodRemoved
	// PodAdded: a pod has come to a node.
	PodAdded
	// PodLabelsChanged: those of a pod on a node, or it has begun to end,
	// when spreading no longer counts it.
	PodLabelsChanged
	// PodScaledDown: a pod on a node requests less.
	PodScaledDown
	// ClaimChanged: a claim of the pod's.
	ClaimChanged
	// VolumeChanged and those below: any of the kind.
	VolumeChanged
	ClassChanged
	CSIDriverChanged
	CSINodeChanged
	CapacityChanged
	AttachmentChanged
	// DevicesChanged: slices of devices, classes or taints of them, or devices
	// were given back.
	DevicesChanged
	// NodeFeaturesChanged: what a node declares that its kubelet can do.
	NodeFeaturesChanged
)

// String is what upstream's metrics call the first of the events in e.
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

// AnyEvent is every event.
const AnyEvent = ^Event(0)

// Waker tells which events may help a pod that the plugin turned down. A filter
// that is no Waker is woken by all.
type Waker interface {
	Wakes() Event
}

// Normalize stretches scores so that the highest is MaxScore; reverse makes the
// lowest the best.
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
