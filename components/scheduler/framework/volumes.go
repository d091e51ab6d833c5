package framework

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"hyperkube/components/scheduler/state"
)

// Volumes is the scheduler's view of storage, including decisions for pods that are being bound.
// All objects are shared and read-only. Methods return nil for unknown objects.
type Volumes interface {
	Claim(namespace, name string) *corev1.PersistentVolumeClaim
	Volume(name string) *corev1.PersistentVolume
	// VolumesOf returns the volumes of a class, which may be "".
	VolumesOf(class string) []*corev1.PersistentVolume
	Class(name string) *storagev1.StorageClass
	Driver(name string) *storagev1.CSIDriver
	CSINode(name string) *storagev1.CSINode
	Capacities() []*storagev1.CSIStorageCapacity
	Attachments() []*storagev1.VolumeAttachment
}

// Reservation is what must be written, and completed, before a pod is bound to a node.
type Reservation struct {
	// Bind are the updated volumes to write, with their claims.
	Bind []Bound
	// Provision are the updated claims to write, with their selected node.
	Provision []Provisioned
	// Timeout is how long to wait for volumes.
	Timeout time.Duration
	// Claims are the resource claims.
	Claims []Claimed
	// DevicesTimeout is how long to wait until drivers have prepared the devices.
	DevicesTimeout time.Duration
}

// Bound is a volume that is bound to a claim.
type Bound struct {
	Volume, Was *corev1.PersistentVolume
	Claim       *corev1.PersistentVolumeClaim
}

// Provisioned is a claim whose volume is provisioned for a node.
type Provisioned struct{ Claim, Was *corev1.PersistentVolumeClaim }

// Reserver decides what must be written to assign a pod to a node. The node has passed the plugin's
// filter in the same cycle.
type Reserver interface {
	Plugin
	// Reserve returns nil if nothing must be written.
	Reserve(c *Cycle, n *state.Node) (*Reservation, error)
}
