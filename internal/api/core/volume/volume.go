// Package volume validates and defaults the volume sources and claim specs that pods,
// PersistentVolumes, claims and claim templates have in common. Validation functions append errors to
// e. The parameter at is the path of the validated field.
package volume

import (
	"maps"
	"net"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// requireAll adds an error for each empty value, below the path at. nameAndValue contains pairs of
// a field name and its value.
func requireAll(e *validate.Errors, at *field.Path, nameAndValue ...string) {
	for i := 0; i+1 < len(nameAndValue); i += 2 {
		if nameAndValue[i+1] == "" {
			e.Required(at.Child(nameAndValue[i]), "")
		}
	}
}

// HostPath validates a hostPath volume and adds the errors to e. at is the field path of the validated value.
func HostPath(e *validate.Errors, v *corev1.HostPathVolumeSource, at *field.Path) {
	if v.Path == "" {
		e.Required(at.Child("path"), "")
		return
	}
	e.PathNoBacksteps(at.Child("path"), v.Path)
	if v.Type != nil {
		validate.OneOf(e, at.Child("type"), *v.Type, corev1.HostPathUnset, corev1.HostPathBlockDev,
			corev1.HostPathCharDev, corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate,
			corev1.HostPathFile, corev1.HostPathFileOrCreate, corev1.HostPathSocket)
	}
}

// NFS validates an NFS volume and adds the errors to e. at is the field path of the validated value.
func NFS(e *validate.Errors, v *corev1.NFSVolumeSource, at *field.Path) {
	requireAll(e, at, "server", v.Server, "path", v.Path)
	if !path.IsAbs(v.Path) {
		e.Invalid(at.Child("path"), v.Path, "must be an absolute path")
	}
}

// ISCSI validates an iSCSI volume of a pod and adds the errors to e. at is the field path of the validated value.
func ISCSI(e *validate.Errors, v *corev1.ISCSIVolumeSource, at *field.Path) {
	requireAll(e, at, "targetPortal", v.TargetPortal)
	iscsiTarget(e, v.IQN, v.Lun, "must be valid format starting with iqn, eui, or naa", at)
	if (v.DiscoveryCHAPAuth || v.SessionCHAPAuth) && v.SecretRef == nil {
		e.Required(at.Child("secretRef"), "")
	}
	if v.InitiatorName != nil {
		iscsiName(e, *v.InitiatorName, "must be valid format starting with iqn, eui, or naa", at.Child("initiatorname"))
	}
}

// ISCSIInitiatorTooLong is upstream's error message for an iSCSI volume with an initiator name
// whose name and target portal are too long together.
const ISCSIInitiatorTooLong = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified."

// persistentISCSI validates the iSCSI source of the PersistentVolume name. With an initiator name, the names of the
// volume and the target portal must not be too long together.
func persistentISCSI(e *validate.Errors, v *corev1.ISCSIPersistentVolumeSource, name string, at *field.Path) {
	requireAll(e, at, "targetPortal", v.TargetPortal)
	if v.InitiatorName != nil && len(name)+1+len(v.TargetPortal) > 64 {
		e.Invalid(at.Child("targetportal"), v.TargetPortal, ISCSIInitiatorTooLong)
	}
	iscsiTarget(e, v.IQN, v.Lun, "must be valid format", at)
	if (v.DiscoveryCHAPAuth || v.SessionCHAPAuth) && v.SecretRef == nil {
		e.Required(at.Child("secretRef"), "")
	}
	if v.SecretRef != nil {
		requireAll(e, at.Child("secretRef"), "name", v.SecretRef.Name)
	}
	if v.InitiatorName != nil {
		iscsiName(e, *v.InitiatorName, "must be valid format", at.Child("initiatorname"))
	}
}

// iscsiTarget validates the name and the LUN of an iSCSI target.
func iscsiTarget(e *validate.Errors, iqn string, lun int32, prefixDetail string, at *field.Path) {
	if iqn == "" {
		e.Required(at.Child("iqn"), "")
	} else {
		iscsiName(e, iqn, prefixDetail, at.Child("iqn"))
	}
	if lun < 0 || lun > 255 {
		e.Invalid(at.Child("lun"), lun, validation.InclusiveRangeError(0, 255))
	}
}

// FC validates a Fibre Channel volume and adds the errors to e. at is the field path of the validated value.
func FC(e *validate.Errors, v *corev1.FCVolumeSource, at *field.Path) {
	switch targets, ids := len(v.TargetWWNs), len(v.WWIDs); {
	case targets == 0 && ids == 0:
		e.Required(at.Child("targetWWNs"), "must specify either targetWWNs or wwids, but not both")
	case targets > 0 && ids > 0:
		e.Invalid(at.Child("targetWWNs"), v.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")
	}
	if len(v.TargetWWNs) > 0 {
		if v.Lun == nil {
			e.Required(at.Child("lun"), "lun is required if targetWWNs is specified")
		} else if *v.Lun < 0 || *v.Lun > 255 {
			e.Invalid(at.Child("lun"), v.Lun, validation.InclusiveRangeError(0, 255))
		}
	}
}

// CSIDriverName validates the name of a CSI driver and adds the errors to e. at is the field path of the validated
// value.
func CSIDriverName(e *validate.Errors, name string, at *field.Path) {
	if name == "" {
		e.Required(at, "")
		return
	}
	if len(name) > 63 {
		e.Add(field.ErrorList{field.TooLong(at, "", 63)})
	}
	e.InvalidAll(at, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))
}

// CSI validates an inline CSI volume of a pod and adds the errors to e. at is the field path of the validated value.
func CSI(e *validate.Errors, v *corev1.CSIVolumeSource, at *field.Path) {
	CSIDriverName(e, v.Driver, at.Child("driver"))
	if ref := v.NodePublishSecretRef; ref != nil {
		if ref.Name == "" {
			e.Required(at.Child("nodePublishSecretRef", "name"), "")
		} else {
			e.InvalidAll(at.Child("name"), ref.Name, apivalidation.NameIsDNSSubdomain(ref.Name, false))
		}
	}
}

// persistentCSI validates the CSI source of a PersistentVolume: its driver, handle, and references to Secrets.
func persistentCSI(e *validate.Errors, v *corev1.CSIPersistentVolumeSource, at *field.Path) {
	CSIDriverName(e, v.Driver, at.Child("driver"))
	requireAll(e, at, "volumeHandle", v.VolumeHandle)
	for _, ref := range []struct {
		name string
		*corev1.SecretReference
	}{
		{"controllerPublishSecretRef", v.ControllerPublishSecretRef},
		{"controllerExpandSecretRef", v.ControllerExpandSecretRef},
		{"nodePublishSecretRef", v.NodePublishSecretRef},
		{"nodeExpandSecretRef", v.NodeExpandSecretRef},
	} {
		if ref.SecretReference == nil {
			continue
		}
		p := at.Child(ref.name)
		if ref.Name == "" {
			e.Required(p.Child("name"), "")
		} else {
			e.Subdomain(p.Child("name"), ref.Name)
		}
		if ref.Namespace == "" {
			e.Required(p.Child("namespace"), "")
		} else {
			e.Label(p.Child("namespace"), ref.Namespace)
		}
	}
}

// FlexDriver validates the driver of a FlexVolume, which is required, and its options, whose keys
// must not be in a domain of Kubernetes.
func FlexDriver(e *validate.Errors, driver string, options map[string]string, at *field.Path) {
	requireAll(e, at, "driver", driver)
	for _, k := range slices.Sorted(maps.Keys(options)) {
		namespace, _, _ := strings.Cut(k, "/")
		namespace = "." + strings.ToLower(namespace)
		if strings.HasSuffix(namespace, ".kubernetes.io") || strings.HasSuffix(namespace, ".k8s.io") {
			e.Invalid(at.Child("options").Key(k), k, "kubernetes.io and k8s.io namespaces are reserved")
		}
	}
}

// Glusterfs validates a GlusterFS volume of a pod and adds the errors to e. at is the field path of the validated
// value.
func Glusterfs(e *validate.Errors, v *corev1.GlusterfsVolumeSource, at *field.Path) {
	requireAll(e, at, "endpoints", v.EndpointsName, "path", v.Path)
}

// Quobyte validates a Quobyte volume and adds the errors to e. at is the field path of the validated value.
func Quobyte(e *validate.Errors, v *corev1.QuobyteVolumeSource, at *field.Path) {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case v.Registry == "":
		e.Required(at.Child("registry"), pairs)
	case len(v.Tenant) > 64:
		e.Required(at.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters")
	default:
		for pair := range strings.SplitSeq(v.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				e.Invalid(at.Child("registry"), v.Registry, pairs)
			}
		}
	}
	requireAll(e, at, "volume", v.Volume)
}

// Flocker validates a Flocker dataset and adds the errors to e. at is the field path of the validated value.
func Flocker(e *validate.Errors, v *corev1.FlockerVolumeSource, at *field.Path) {
	switch {
	case v.DatasetName == "" && v.DatasetUUID == "":
		e.Required(at, "one of datasetName and datasetUUID is required")
	case v.DatasetName != "" && v.DatasetUUID != "":
		e.Invalid(at, "resource", "datasetName and datasetUUID can not be specified simultaneously")
	}
	if strings.Contains(v.DatasetName, "/") {
		e.Invalid(at.Child("datasetName"), v.DatasetName, "must not contain '/'")
	}
}

// Disk validates a disk of a cloud provider: the name, in the JSON field named field, is required, and the partition
// must be between 0 and 255. Callers pass 0 if there is no partition.
func Disk(e *validate.Errors, field, name string, partition int32, at *field.Path) {
	requireAll(e, at, field, name)
	if partition < 0 || partition > 255 {
		e.Invalid(at.Child("partition"), partition, validation.InclusiveRangeError(1, 255))
	}
}

// RBD validates a Ceph RBD volume and adds the errors to e. at is the field path of the validated value.
func RBD(e *validate.Errors, monitors []string, image string, at *field.Path) {
	CephFS(e, monitors, at)
	requireAll(e, at, "image", image)
}

// CephFS validates the list of Ceph monitors, which must not be empty.
func CephFS(e *validate.Errors, monitors []string, at *field.Path) {
	if len(monitors) == 0 {
		e.Required(at.Child("monitors"), "")
	}
}

// AzureFile validates an Azure file share and adds the errors to e. at is the field path of the validated value.
func AzureFile(e *validate.Errors, secret, share string, at *field.Path) {
	requireAll(e, at, "secretName", secret, "shareName", share)
}

// AzureDisk validates an Azure disk and adds the errors to e. at is the field path of the validated value.
func AzureDisk(e *validate.Errors, v *corev1.AzureDiskVolumeSource, at *field.Path) {
	requireAll(e, at, "diskName", v.DiskName, "diskURI", v.DataDiskURI)
	if v.CachingMode != nil {
		validate.OneOf(e, at.Child("cachingMode"), *v.CachingMode,
			corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)
	}
	if v.Kind == nil {
		return
	}
	validate.OneOf(e, at.Child("kind"), *v.Kind,
		corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk)
	form, prefix := "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd", "https://"
	if *v.Kind == corev1.AzureManagedDisk {
		form, prefix = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}", "/subscriptions/"
	}
	if !strings.HasPrefix(v.DataDiskURI, prefix) {
		e.Add(field.ErrorList{field.NotSupported(at.Child("diskURI"), v.DataDiskURI, []string{form})})
	}
}

// ScaleIO validates a ScaleIO volume and adds the errors to e. at is the field path of the validated value.
func ScaleIO(e *validate.Errors, gateway, system, volume string, at *field.Path) {
	requireAll(e, at, "gateway", gateway, "system", system, "volumeName", volume)
}

// StorageOS validates a StorageOS volume and its namespace and adds the errors to e. at is the field path of the
// validated value.
func StorageOS(e *validate.Errors, volume, namespace string, at *field.Path) {
	if volume == "" {
		e.Required(at.Child("volumeName"), "")
	} else {
		e.Label(at.Child("volumeName"), volume)
	}
	if namespace != "" {
		e.Label(at.Child("volumeNamespace"), namespace)
	}
}
