package volume

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// PersistentSpec validates the spec of a PersistentVolume. name is the name of the volume, which
// limits the length of its iSCSI target portal.
func PersistentSpec(e *validate.Errors, spec *corev1.PersistentVolumeSpec, name string, at *field.Path) {
	if len(spec.AccessModes) == 0 {
		e.Required(at.Child("accessModes"), "")
	}
	accessModes(e, spec.AccessModes, at.Child("accessModes"))
	capacity(e, spec.Capacity, at.Child("capacity"))
	if spec.PersistentVolumeReclaimPolicy != "" {
		validate.OneOf(e, at.Child("persistentVolumeReclaimPolicy"), spec.PersistentVolumeReclaimPolicy,
			corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain)
	}
	if spec.NodeAffinity != nil {
		p := at.Child("nodeAffinity", "required")
		if spec.NodeAffinity.Required == nil {
			e.Required(p, "must specify required node constraints")
		} else {
			e.NodeSelector(p, spec.NodeAffinity.Required)
		}
	}
	persistentSource(e, spec, name, at)
	if spec.HostPath != nil && path.Clean(spec.HostPath.Path) == "/" && spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		e.Forbidden(at.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'")
	}
	if spec.StorageClassName != "" {
		e.Subdomain(at.Child("storageClassName"), spec.StorageClassName)
	}
	volumeMode(e, spec.VolumeMode, at)
	if class := spec.VolumeAttributesClassName; class != nil {
		if *class == "" {
			e.Required(at.Child("volumeAttributesClassName"), "an empty string is disallowed")
		} else {
			e.Subdomain(at.Child("volumeAttributesClassName"), *class)
		}
		if spec.CSI == nil {
			e.Required(at.Child("csi"), "has to be specified when using volumeAttributesClassName")
		}
	}
}

// InlineSpec validates the inline volume of a VolumeAttachment: a CSI volume without the fields
// that are related to claims.
func InlineSpec(e *validate.Errors, spec *corev1.PersistentVolumeSpec, at *field.Path) {
	const here = "may not be specified in the context of inline volumes"
	if spec.ClaimRef != nil {
		e.Forbidden(at.Child("claimRef"), here)
	}
	if len(spec.Capacity) != 0 {
		e.Forbidden(at.Child("capacity"), here)
	}
	if spec.CSI == nil {
		e.Required(at.Child("csi"), "has to be specified in the context of inline volumes")
	}
	if len(spec.AccessModes) == 0 {
		e.Required(at.Child("accessModes"), "")
	}
	accessModes(e, spec.AccessModes, at.Child("accessModes"))
	if p := spec.PersistentVolumeReclaimPolicy; p != "" && p != corev1.PersistentVolumeReclaimRetain {
		e.Forbidden(at.Child("persistentVolumeReclaimPolicy"), "may only be Retain in the context of inline volumes")
	}
	if spec.NodeAffinity != nil {
		e.Forbidden(at.Child("nodeAffinity"), here)
	}
	persistentSource(e, spec, "", at)
	if spec.StorageClassName != "" {
		e.Forbidden(at.Child("storageClassName"), here)
	}
	if m := spec.VolumeMode; m != nil && *m != corev1.PersistentVolumeFilesystem {
		e.Forbidden(at.Child("volumeMode"), "may not specify volumeMode other than Filesystem in the context of inline volumes")
	}
}

// capacity checks that the capacity of a volume contains only storage, and that it is positive.
func capacity(e *validate.Errors, list corev1.ResourceList, at *field.Path) {
	if len(list) == 0 {
		e.Required(at, "")
	}
	if _, ok := list[corev1.ResourceStorage]; !ok || len(list) > 1 {
		e.Add(field.ErrorList{field.NotSupported(at, list, []corev1.ResourceName{corev1.ResourceStorage})})
	}
	for name, q := range list {
		e.BasicQuantity(at.Key(string(name)), q)
		e.PositiveQuantity(at.Key(string(name)), q)
	}
}

// persistentSource checks that a PersistentVolume has exactly one source. If there are several, it
// validates the first in upstream's order, which the code below preserves, and rejects the others.
// name is the name of the volume.
func persistentSource(e *validate.Errors, v *corev1.PersistentVolumeSpec, name string, at *field.Path) {
	types := 0
	is := func(set bool, name string) bool {
		if !set {
			return false
		}
		if types++; types > 1 {
			e.Forbidden(at.Child(name), "may not specify more than 1 volume type")
			return false
		}
		return true
	}
	firstPersistentSources(e, v, name, at, is)
	// As in upstream, it is validated in addition to other sources and not rejected because of
	// them.
	if v.FlexVolume != nil {
		types++
		FlexDriver(e, v.FlexVolume.Driver, v.FlexVolume.Options, at.Child("flexVolume"))
	}
	laterPersistentSources(e, v, at, is)
	if types == 0 {
		e.Required(at, "must specify a volume type")
	}
}

func firstPersistentSources(e *validate.Errors, v *corev1.PersistentVolumeSpec, name string, at *field.Path, is func(bool, string) bool) {
	if is(v.HostPath != nil, "hostPath") {
		HostPath(e, v.HostPath, at.Child("hostPath"))
	}
	if is(v.GCEPersistentDisk != nil, "gcePersistentDisk") {
		Disk(e, "pdName", v.GCEPersistentDisk.PDName, v.GCEPersistentDisk.Partition, at.Child("persistentDisk"))
	}
	if is(v.AWSElasticBlockStore != nil, "awsElasticBlockStore") {
		Disk(e, "volumeID", v.AWSElasticBlockStore.VolumeID, v.AWSElasticBlockStore.Partition, at.Child("awsElasticBlockStore"))
	}
	if is(v.Glusterfs != nil, "glusterfs") {
		p := at.Child("glusterfs")
		requireAll(e, p, "endpoints", v.Glusterfs.EndpointsName, "path", v.Glusterfs.Path)
		if ns := v.Glusterfs.EndpointsNamespace; ns != nil {
			if *ns == "" {
				e.Invalid(p.Child("endpointsNamespace"), *ns, "if the endpointnamespace is set, it must be a valid namespace name")
			} else {
				e.InvalidAll(p.Child("endpointsNamespace"), *ns, apivalidation.ValidateNamespaceName(*ns, false))
			}
		}
	}
	if is(v.Flocker != nil, "flocker") {
		Flocker(e, v.Flocker, at.Child("flocker"))
	}
	if is(v.NFS != nil, "nfs") {
		NFS(e, v.NFS, at.Child("nfs"))
	}
	if is(v.RBD != nil, "rbd") {
		RBD(e, v.RBD.CephMonitors, v.RBD.RBDImage, at.Child("rbd"))
	}
	if is(v.Quobyte != nil, "quobyte") {
		Quobyte(e, v.Quobyte, at.Child("quobyte"))
	}
	if is(v.CephFS != nil, "cephFS") {
		CephFS(e, v.CephFS.Monitors, at.Child("cephfs"))
	}
	if is(v.ISCSI != nil, "iscsi") {
		persistentISCSI(e, v.ISCSI, name, at.Child("iscsi"))
	}
	if is(v.Cinder != nil, "cinder") {
		requireAll(e, at.Child("cinder"), "volumeID", v.Cinder.VolumeID)
		if ref := v.Cinder.SecretRef; ref != nil {
			requireAll(e, at.Child("cinder", "secretRef"), "name", ref.Name, "namespace", ref.Namespace)
		}
	}
	if is(v.FC != nil, "fc") {
		FC(e, v.FC, at.Child("fc"))
	}
}

func laterPersistentSources(e *validate.Errors, v *corev1.PersistentVolumeSpec, at *field.Path, is func(bool, string) bool) {
	if is(v.AzureFile != nil, "azureFile") {
		AzureFile(e, v.AzureFile.SecretName, v.AzureFile.ShareName, at.Child("azureFile"))
		if ns := v.AzureFile.SecretNamespace; ns != nil {
			requireAll(e, at.Child("azureFile"), "secretNamespace", *ns)
		}
	}
	if is(v.VsphereVolume != nil, "vsphereVolume") {
		requireAll(e, at.Child("vsphereVolume"), "volumePath", v.VsphereVolume.VolumePath)
	}
	if is(v.PhotonPersistentDisk != nil, "photonPersistentDisk") {
		requireAll(e, at.Child("photonPersistentDisk"), "pdID", v.PhotonPersistentDisk.PdID)
	}
	if is(v.PortworxVolume != nil, "portworxVolume") {
		requireAll(e, at.Child("portworxVolume"), "volumeID", v.PortworxVolume.VolumeID)
	}
	if is(v.AzureDisk != nil, "azureDisk") {
		AzureDisk(e, v.AzureDisk, at.Child("azureDisk"))
	}
	if is(v.ScaleIO != nil, "scaleIO") {
		ScaleIO(e, v.ScaleIO.Gateway, v.ScaleIO.System, v.ScaleIO.VolumeName, at.Child("scaleIO"))
	}
	if is(v.Local != nil, "local") {
		switch p := at.Child("local", "path"); {
		case v.Local.Path == "":
			e.Required(p, "")
		default:
			e.PathNoBacksteps(p, v.Local.Path)
		}
		if v.NodeAffinity == nil {
			e.Required(at.Child("nodeAffinity"), "Local volume requires node affinity")
		}
	}
	if is(v.StorageOS != nil, "storageos") {
		StorageOS(e, v.StorageOS.VolumeName, v.StorageOS.VolumeNamespace, at.Child("storageos"))
		if ref := v.StorageOS.SecretRef; ref != nil {
			requireAll(e, at.Child("storageos", "secretRef"), "name", ref.Name, "namespace", ref.Namespace)
		}
	}
	if is(v.CSI != nil, "csi") {
		persistentCSI(e, v.CSI, at.Child("csi"))
	}
}
