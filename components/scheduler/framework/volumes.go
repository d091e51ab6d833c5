package framework

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"hyperkube/components/scheduler/state"
)

// Volumes is what is known of storage, with what was decided for pods whose
// binding is under way. All objects are shared; nil is one that is not known.
type Volumes interface {
	Claim(namespace, name string) *corev1.PersistentVolumeClaim
	Volume(name string) *corev1.PersistentVolume
	// VolumesOf returns the volumes of a class, "" being one too.
	VolumesOf(class string) []*corev1.PersistentVolume
	Class(name string) *storagev1.StorageClass
	Driver(name string) *storagev1.CSIDriver
	CSINode(name string) *storagev1.CSINode
	Capacities() []*storagev1.CSIStorageCapacity
	Attachments() []*storagev1.VolumeAttachment
}

// Reservation is what must be written, and come true, before a pod is bound to
// a node.
type Reservation struct {
	// Bind are volumes as they are to be, each with its claim.
	Bind []Bound
	// Provision are claims as they are to be, with their node.
	Provision []Provisioned
	// Timeout is how long volumes may take.
	Timeout time.Duration
	// Claims are those to devices.
	Claims []Claimed
	// DevicesTimeout is how long drivers may take to make devices ready.
	DevicesTimeout time.Duration
}

// Bound is a volume for a claim.
type Bound struct {
	Volume, Was *corev1.PersistentVolume
	Claim       *corev1.PersistentVolumeClaim
}

// Provisioned is a claim whose volume is to be made for a node.
type Provisioned struct{ Claim, Was *corev1.PersistentVolumeClaim }

// Reserver decides, for the node that was chosen, what comes with it. The node
// has passed the plugin's filter in the same cycle.
type Reserver interface {
	Plugin
	// Reserve returns nil when there is nothing to do.
	Reserve(c *Cycle, n *state.Node) (*Reservation, error)
}
