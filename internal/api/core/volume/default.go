package volume

import (
	corev1 "k8s.io/api/core/v1"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// DefaultHostPath fills what is unset in a path of the node.
func DefaultHostPath(v *corev1.HostPathVolumeSource) { api.SetDefault(&v.Type, corev1.HostPathUnset) }

// DefaultISCSI fills what is unset of a target.
func DefaultISCSI(device *string) { api.SetIfZero(device, "default") }

// DefaultRBD fills what is unset of an image of Ceph.
func DefaultRBD(pool, user, keyring *string) {
	api.SetIfZero(pool, "rbd")
	api.SetIfZero(user, "admin")
	api.SetIfZero(keyring, "/etc/ceph/keyring")
}

// DefaultAzureDisk fills what is unset of a disk.
func DefaultAzureDisk(v *corev1.AzureDiskVolumeSource) {
	api.SetDefault(&v.CachingMode, corev1.AzureDataDiskCachingReadWrite)
	api.SetDefault(&v.FSType, "ext4")
	api.SetDefault(&v.ReadOnly, false)
	api.SetDefault(&v.Kind, corev1.AzureSharedBlobDisk)
}

// DefaultScaleIO fills what is unset of a volume.
func DefaultScaleIO(mode, fsType *string) {
	api.SetIfZero(mode, "ThinProvisioned")
	api.SetIfZero(fsType, "xfs")
}

// DefaultPersistentSpec fills what is unset in a persistent volume.
func DefaultPersistentSpec(spec *corev1.PersistentVolumeSpec) {
	api.SetIfZero(&spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	api.SetDefault(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
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
