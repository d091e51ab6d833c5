package framework

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"hyperkube/components/scheduler/state"
)

// Volumes is the scheduler's view of storage, including claims and volumes that are being written for pods that are
// being bound. Package scheduler implements it for plugins. All objects are shared and must not be modified. Methods
// return nil for objects that do not exist.
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

// Reservation contains the objects that must be written, and become ready, before a pod is bound to its node.
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

// Bound is a PersistentVolume that the scheduler binds to a claim. Volume is the version to write, Was the cached
// version from which it was made. Until Reserve, both are the same.
type Bound struct {
	Volume, Was *corev1.PersistentVolume
	Claim       *corev1.PersistentVolumeClaim
}

// Provisioned is a claim for which a provisioner creates a volume that the chosen node can access. Claim is the version
// to write, which contains the node's name, and Was the cached version.
type Provisioned struct{ Claim, Was *corev1.PersistentVolumeClaim }

// Reserver is implemented by filters that must write objects before a pod is bound. The scheduler calls it for the node
// that it has chosen, which has passed the filter in the same cycle.
type Reserver interface {
	Plugin
	// Reserve returns nil if nothing must be written.
	Reserve(c *Cycle, n *state.Node) (*Reservation, error)
}
