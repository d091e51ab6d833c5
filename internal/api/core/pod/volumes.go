package pod

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/core/volume"
	"hyperkube/internal/api/validate"
)

// checkVolumes validates the pod's volumes at path and stores the valid ones in c.volumes, with
// which the mounts of containers are validated.
func (c *checker) checkVolumes(path *field.Path) {
	if len(c.spec.Volumes) == 0 {
		return
	}
	c.volumes = make(map[string]*corev1.VolumeSource, len(c.spec.Volumes))
	// Other volumes must not use the claims of the pod's ephemeral volumes.
	var made map[string]bool
	for i := range c.spec.Volumes {
		if v := &c.spec.Volumes[i]; v.Ephemeral != nil && c.podName != "" {
			if made == nil {
				made = map[string]bool{}
			}
			made[c.podName+"-"+v.Name] = true
		}
	}
	for i := range c.spec.Volumes {
		v, at := &c.spec.Volumes[i], path.Index(i)
		before := len(c.List)
		c.checkVolumeSource(v, at)
		if v.Name == "" {
			c.Required(at.Child("name"), "")
		} else {
			c.Label(at.Child("name"), v.Name)
		}
		if _, twice := c.volumes[v.Name]; twice {
			c.Duplicate(at.Child("name"), v.Name)
		}
		if len(c.List) == before {
			c.volumes[v.Name] = &v.VolumeSource
		}
		if pvc := v.PersistentVolumeClaim; pvc != nil && made[pvc.ClaimName] {
			c.Invalid(at.Child("persistentVolumeClaim", "claimName"), pvc.ClaimName,
				"must not reference a PVC that gets created for an ephemeral volume")
		}
	}
}

// checkVolumeSource checks that a volume has exactly one source. If there are several, it validates
// the first in upstream's order, which the code below preserves, and rejects the others.
func (c *checker) checkVolumeSource(v *corev1.Volume, at *field.Path) {
	types := 0
	// is counts a source that is set, and reports whether to validate it.
	is := func(set bool, name string) bool {
		if !set {
			return false
		}
		if types++; types > 1 {
			c.Forbidden(at.Child(name), "may not specify more than 1 volume type")
			return false
		}
		return true
	}
	checkFirstSources(&c.Errors, v, at, is)
	c.checkLaterSources(v, at, is)
	if types == 0 {
		c.Required(at, "must specify a volume type")
	}
}

func checkFirstSources(e *validate.Errors, v *corev1.Volume, at *field.Path, is func(bool, string) bool) {
	if is(v.EmptyDir != nil, "emptyDir") && v.EmptyDir.SizeLimit != nil && v.EmptyDir.SizeLimit.Sign() < 0 {
		e.Forbidden(at.Child("emptyDir", "sizeLimit"), "SizeLimit field must be a valid resource quantity")
	}
	if is(v.HostPath != nil, "hostPath") {
		volume.HostPath(e, v.HostPath, at.Child("hostPath"))
	}
	if is(v.GitRepo != nil, "gitRepo") {
		p := at.Child("gitRepo")
		if v.GitRepo.Repository == "" {
			e.Required(p.Child("repository"), "")
		}
		e.DescendingPath(p.Child("directory"), v.GitRepo.Directory)
	}
	if is(v.GCEPersistentDisk != nil, "gcePersistentDisk") {
		volume.Disk(e, "pdName", v.GCEPersistentDisk.PDName, v.GCEPersistentDisk.Partition, at.Child("persistentDisk"))
	}
	if is(v.AWSElasticBlockStore != nil, "awsElasticBlockStore") {
		volume.Disk(e, "volumeID", v.AWSElasticBlockStore.VolumeID, v.AWSElasticBlockStore.Partition, at.Child("awsElasticBlockStore"))
	}
	if is(v.Secret != nil, "secret") {
		checkFiles(e, "secretName", v.Secret.SecretName, v.Secret.DefaultMode, v.Secret.Items, at.Child("secret"))
	}
	if is(v.NFS != nil, "nfs") {
		volume.NFS(e, v.NFS, at.Child("nfs"))
	}
	if is(v.ISCSI != nil, "iscsi") {
		volume.ISCSI(e, v.ISCSI, at.Child("iscsi"))
		if v.ISCSI.InitiatorName != nil && len(v.Name)+1+len(v.ISCSI.TargetPortal) > 64 {
			e.Invalid(at.Child("name"), v.Name, volume.ISCSIInitiatorTooLong)
		}
	}
	if is(v.Glusterfs != nil, "glusterfs") {
		volume.Glusterfs(e, v.Glusterfs, at.Child("glusterfs"))
	}
	if is(v.Flocker != nil, "flocker") {
		volume.Flocker(e, v.Flocker, at.Child("flocker"))
	}
	if is(v.PersistentVolumeClaim != nil, "persistentVolumeClaim") && v.PersistentVolumeClaim.ClaimName == "" {
		e.Required(at.Child("persistentVolumeClaim", "claimName"), "")
	}
	if is(v.RBD != nil, "rbd") {
		volume.RBD(e, v.RBD.CephMonitors, v.RBD.RBDImage, at.Child("rbd"))
	}
	if is(v.Cinder != nil, "cinder") {
		volume.Disk(e, "volumeID", v.Cinder.VolumeID, 0, at.Child("cinder"))
		if v.Cinder.SecretRef != nil && v.Cinder.SecretRef.Name == "" {
			e.Required(at.Child("cinder", "secretRef", "name"), "")
		}
	}
	if is(v.CephFS != nil, "cephFS") {
		volume.CephFS(e, v.CephFS.Monitors, at.Child("cephfs"))
	}
	if is(v.Quobyte != nil, "quobyte") {
		volume.Quobyte(e, v.Quobyte, at.Child("quobyte"))
	}
}

func (c *checker) checkLaterSources(v *corev1.Volume, at *field.Path, is func(bool, string) bool) {
	e := &c.Errors
	if is(v.DownwardAPI != nil, "downwarAPI") {
		p := at.Child("downwardAPI")
		c.FileMode(p.Child("defaultMode"), v.DownwardAPI.DefaultMode)
		for i := range v.DownwardAPI.Items {
			checkDownwardFile(&c.Errors, &v.DownwardAPI.Items[i], p)
		}
	}
	if is(v.FC != nil, "fc") {
		volume.FC(e, v.FC, at.Child("fc"))
	}
	if is(v.FlexVolume != nil, "flexVolume") {
		volume.FlexDriver(e, v.FlexVolume.Driver, v.FlexVolume.Options, at.Child("flexVolume"))
	}
	if is(v.ConfigMap != nil, "configMap") {
		checkFiles(&c.Errors, "name", v.ConfigMap.Name, v.ConfigMap.DefaultMode, v.ConfigMap.Items, at.Child("configMap"))
	}
	if is(v.AzureFile != nil, "azureFile") {
		volume.AzureFile(e, v.AzureFile.SecretName, v.AzureFile.ShareName, at.Child("azureFile"))
	}
	if is(v.VsphereVolume != nil, "vsphereVolume") {
		volume.Disk(e, "volumePath", v.VsphereVolume.VolumePath, 0, at.Child("vsphereVolume"))
	}
	if is(v.PhotonPersistentDisk != nil, "photonPersistentDisk") {
		volume.Disk(e, "pdID", v.PhotonPersistentDisk.PdID, 0, at.Child("photonPersistentDisk"))
	}
	if is(v.PortworxVolume != nil, "portworxVolume") {
		volume.Disk(e, "volumeID", v.PortworxVolume.VolumeID, 0, at.Child("portworxVolume"))
	}
	if is(v.AzureDisk != nil, "azureDisk") {
		volume.AzureDisk(e, v.AzureDisk, at.Child("azureDisk"))
	}
	if is(v.StorageOS != nil, "storageos") {
		volume.StorageOS(e, v.StorageOS.VolumeName, v.StorageOS.VolumeNamespace, at.Child("storageos"))
		if v.StorageOS.SecretRef != nil && v.StorageOS.SecretRef.Name == "" {
			c.Required(at.Child("storageos", "secretRef", "name"), "")
		}
	}
	if is(v.Projected != nil, "projected") {
		checkProjected(&c.Errors, v.Projected, at.Child("projected"))
	}
	if is(v.ScaleIO != nil, "scaleIO") {
		volume.ScaleIO(e, v.ScaleIO.Gateway, v.ScaleIO.System, v.ScaleIO.VolumeName, at.Child("scaleIO"))
	}
	if is(v.CSI != nil, "csi") {
		volume.CSI(e, v.CSI, at.Child("csi"))
	}
	if is(v.Ephemeral != nil, "ephemeral") {
		c.checkEphemeral(v, at)
	}
	if is(v.Image != nil, "image") {
		if c.isPod && v.Image.Reference == "" {
			c.Required(at.Child("image", "reference"), "")
		}
		checkPullPolicy(&c.Errors, v.Image.PullPolicy, at.Child("image", "pullPolicy"))
	}
}

// checkFiles validates a Secret or ConfigMap as the source of a volume's files. nameField is the
// JSON name of the field with the object's name; mode is nil in projected volumes.
func checkFiles(e *validate.Errors, nameField, name string, mode *int32, items []corev1.KeyToPath, at *field.Path) {
	if name == "" {
		e.Required(at.Child(nameField), "")
	}
	e.FileMode(at.Child("defaultMode"), mode)
	for i := range items {
		checkKeyToPath(e, &items[i], at.Child("items").Index(i))
	}
}

func checkKeyToPath(e *validate.Errors, kp *corev1.KeyToPath, at *field.Path) {
	if kp.Key == "" {
		e.Required(at.Child("key"), "")
	}
	if kp.Path == "" {
		e.Required(at.Child("path"), "")
	}
	e.NonReservedPath(at.Child("path"), kp.Path)
	e.FileMode(at.Child("mode"), kp.Mode)
}

func checkDownwardFile(e *validate.Errors, f *corev1.DownwardAPIVolumeFile, at *field.Path) {
	if f.Path == "" {
		e.Required(at.Child("path"), "")
	}
	e.NonReservedPath(at.Child("path"), f.Path)
	switch {
	case f.FieldRef != nil:
		checkFieldRef(e, f.FieldRef, volumeFieldPaths, at.Child("fieldRef"))
		if f.ResourceFieldRef != nil {
			e.Invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		}
	case f.ResourceFieldRef != nil:
		checkResourceFieldRef(e, f.ResourceFieldRef, true, at.Child("resourceFieldRef"))
	default:
		e.Required(at, "one of fieldRef and resourceFieldRef is required")
	}
	e.FileMode(at.Child("mode"), f.Mode)
}

// checkEphemeral validates the claim template of an ephemeral volume, and that the name of its
// claim, POD-VOLUME, is valid.
func (c *checker) checkEphemeral(v *corev1.Volume, at *field.Path) {
	p := at.Child("ephemeral", "volumeClaimTemplate")
	if v.Ephemeral.VolumeClaimTemplate == nil {
		c.Required(p, "")
	} else {
		volume.ClaimTemplate(&c.Errors, v.Ephemeral.VolumeClaimTemplate, p)
	}
	if c.podName == "" || v.Name == "" {
		return
	}
	claim := c.podName + "-" + v.Name
	for _, msg := range apivalidation.NameIsDNSSubdomain(claim, false) {
		c.Invalid(at.Child("name"), v.Name, fmt.Sprintf("PVC name %q: %v", claim, msg))
	}
}
