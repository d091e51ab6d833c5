package volume

import (
	corev1 "k8s.io/api/core/v1"

	"hyperkube/internal/api/validate"
)

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func setPtr[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// DefaultHostPath fills what is unset in a path of the node.
func DefaultHostPath(v *corev1.HostPathVolumeSource) { setPtr(&v.Type, corev1.HostPathUnset) }

// DefaultISCSI fills what is unset of a target.
func DefaultISCSI(device *string) { setDefault(device, "default") }

// DefaultRBD fills what is unset of an image of Ceph.
func DefaultRBD(pool, user, keyring *string) {
	setDefault(pool, "rbd")
	setDefault(user, "admin")
	setDefault(keyring, "/etc/ceph/keyring")
}

// DefaultAzureDisk fills what is unset of a disk.
func DefaultAzureDisk(v *corev1.AzureDiskVolumeSource) {
	setPtr(&v.CachingMode, corev1.AzureDataDiskCachingReadWrite)
	setPtr(&v.FSType, "ext4")
	setPtr(&v.ReadOnly, false)
	setPtr(&v.Kind, corev1.AzureSharedBlobDisk)
}

// DefaultScaleIO fills what is unset of a volume.
func DefaultScaleIO(mode, fsType *string) {
	setDefault(mode, "ThinProvisioned")
	setDefault(fsType, "xfs")
}

// DefaultPersistentSpec fills what is unset in a persistent volume.
func DefaultPersistentSpec(spec *corev1.PersistentVolumeSpec) {
	setDefault(&spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	setPtr(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	DefaultInlineSpec(spec)
}

// DefaultInlineSpec fills what is unset in a volume that is part of its
// attachment: capacity and sources alone. There may be several sources as long
// as nothing has been checked.
func DefaultInlineSpec(spec *corev1.PersistentVolumeSpec) {
	validate.RoundUp(spec.Capacity)
	if spec.HostPath != nil {
		DefaultHostPath(spec.HostPath)
	}
	if spec.ISCSI != nil {
		DefaultISCSI(&spec.ISCSI.ISCSIInterface)
	}
	if spec.RBD != nil {
		DefaultRBD(&spec.RBD.RBDPool, &spec.RBD.RadosUser, &spec.RBD.Keyring)
	}
	if spec.AzureDisk != nil {
		DefaultAzureDisk(spec.AzureDisk)
	}
	if spec.ScaleIO != nil {
		DefaultScaleIO(&spec.ScaleIO.StorageMode, &spec.ScaleIO.FSType)
	}
}
