package volume

import (
	corev1 "k8s.io/api/core/v1"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// DefaultHostPath sets the default type of a hostPath volume, "", if the type is nil.
func DefaultHostPath(v *corev1.HostPathVolumeSource) { api.SetDefault(&v.Type, corev1.HostPathUnset) }

// DefaultISCSI sets the iSCSI interface of a volume to "default" if it is empty.
func DefaultISCSI(device *string) { api.SetIfZero(device, "default") }

// DefaultRBD sets the defaults of a Ceph RBD volume.
func DefaultRBD(pool, user, keyring *string) {
	api.SetIfZero(pool, "rbd")
	api.SetIfZero(user, "admin")
	api.SetIfZero(keyring, "/etc/ceph/keyring")
}

// DefaultAzureDisk sets the defaults of an Azure disk.
func DefaultAzureDisk(v *corev1.AzureDiskVolumeSource) {
	api.SetDefault(&v.CachingMode, corev1.AzureDataDiskCachingReadWrite)
	api.SetDefault(&v.FSType, "ext4")
	api.SetDefault(&v.ReadOnly, false)
	api.SetDefault(&v.Kind, corev1.AzureSharedBlobDisk)
}

// DefaultScaleIO sets the defaults of a ScaleIO volume.
func DefaultScaleIO(mode, fsType *string) {
	api.SetIfZero(mode, "ThinProvisioned")
	api.SetIfZero(fsType, "xfs")
}

// DefaultPersistentSpec sets the defaults of a PersistentVolume: the reclaim policy Retain, the volume mode
// Filesystem, and those of DefaultInlineSpec.
func DefaultPersistentSpec(spec *corev1.PersistentVolumeSpec) {
	api.SetIfZero(&spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	api.SetDefault(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	DefaultInlineSpec(spec)
}

// DefaultInlineSpec sets the defaults of the inline volume in a VolumeAttachment: only those of the
// capacity and the volume sources. It is called before validation, so there may be several sources.
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
