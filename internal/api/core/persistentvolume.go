package core

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/volume"
	"hyperkube/internal/api/validate"
)

func persistentVolume() api.Kind[*corev1.PersistentVolume] {
	spec, status := corev1.PersistentVolumeSpec{}.SwaggerDoc(), corev1.PersistentVolumeStatus{}.SwaggerDoc()
	return api.Kind[*corev1.PersistentVolume]{
		Names: api.Names{
			Kind:       "PersistentVolume",
			Plural:     "persistentvolumes",
			ShortNames: []string{"pv"},
		},
		Version: "v1",
		Scope:   api.Cluster,
		New:     func() *corev1.PersistentVolume { return &corev1.PersistentVolume{} },
		NewList: func() runtime.Object { return &corev1.PersistentVolumeList{} },
		Default: func(pv *corev1.PersistentVolume) {
			if pv.Status.Phase == "" {
				pv.Status.Phase = corev1.VolumePending
			}
			volume.DefaultPersistentSpec(&pv.Spec)
		},
		PrepareCreate: func(_ context.Context, pv *corev1.PersistentVolume) {
			now := metav1.Now()
			pv.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: &now}
		},
		Validate: func(_ context.Context, pv *corev1.PersistentVolume) field.ErrorList {
			return validatePersistentVolume(pv)
		},
		Warnings: persistentVolumeWarnings,
		Update: api.KindUpdate[*corev1.PersistentVolume]{
			AsNew: true, NewFirst: true,
			Prepare: func(_ context.Context, pv, old *corev1.PersistentVolume) {
				old.Status.DeepCopyInto(&pv.Status)
			},
			Validate:    validatePersistentVolumeUpdate,
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*corev1.PersistentVolume]{
			"status": {
				Prepare:     preparePersistentVolumeStatus,
				ResetFields: [][]string{{"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Capacity", "string", spec["capacity"]),
			api.Column("Access Modes", "string", spec["accessModes"]),
			api.Column("Reclaim Policy", "string", spec["persistentVolumeReclaimPolicy"]),
			api.Column("Status", "string", status["phase"]),
			api.Column("Claim", "string", spec["claimRef"]),
			api.Column("StorageClass", "string", "StorageClass of the pv"),
			api.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pv"),
			api.Column("Reason", "string", status["reason"]),
			api.AgeColumn,
			api.WideColumn("VolumeMode", "string", spec["volumeMode"]),
		},
		Row: persistentVolumeRow,
	}
}

func validatePersistentVolume(pv *corev1.PersistentVolume) field.ErrorList {
	e := &validate.Errors{}
	volume.PersistentSpec(e, &pv.Spec, pv.Name, field.NewPath("spec"))
	if _, ok := pv.Annotations[corev1.MountOptionAnnotation]; ok && !takesMountOptions(&pv.Spec.PersistentVolumeSource) {
		e.Forbidden(field.NewPath("metadata", "annotations", corev1.MountOptionAnnotation), "may not specify mount options for this volume type")
	}
	return e.List
}

// takesMountOptions reports whether the legacy mount options annotation is allowed for the volume
// type. Other types only support spec.mountOptions.
func takesMountOptions(s *corev1.PersistentVolumeSource) bool {
	return s.GCEPersistentDisk != nil || s.AWSElasticBlockStore != nil || s.Glusterfs != nil || s.NFS != nil || s.RBD != nil ||
		s.Quobyte != nil || s.ISCSI != nil || s.Cinder != nil || s.CephFS != nil || s.AzureFile != nil || s.VsphereVolume != nil ||
		s.AzureDisk != nil || s.PhotonPersistentDisk != nil
}

// validatePersistentVolumeUpdate validates an update of a PersistentVolume. Its source and volume mode must not change,
// except that a secret for expansion can be added to a CSI source. Once it is set, the node affinity may only change
// from beta labels to stable ones, and the VolumeAttributesClass must not be removed.
func validatePersistentVolumeUpdate(_ context.Context, pv, old *corev1.PersistentVolume) field.ErrorList {
	e := &validate.Errors{}
	e.Add(validatePersistentVolume(pv))
	source, before := pv.Spec.PersistentVolumeSource, old.Spec.PersistentVolumeSource
	if source.CSI != nil && before.CSI != nil && before.CSI.ControllerExpandSecretRef == nil {
		// The secret for volume expansion may be added.
		csi := *source.CSI
		csi.ControllerExpandSecretRef = nil
		source.CSI = &csi
	}
	if !apiequality.Semantic.DeepEqual(source, before) {
		e.Forbidden(field.NewPath("spec", "persistentvolumesource"),
			fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v", validate.Diff(&before, &source)))
	}
	e.Add(apivalidation.ValidateImmutableField(pv.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode")))
	if old.Spec.NodeAffinity != nil && !sameNodes(pv.Spec.NodeAffinity, old.Spec.NodeAffinity) {
		e.Invalid(field.NewPath("nodeAffinity"), pv.Spec.NodeAffinity, apivalidation.FieldImmutableErrorMsg+", except for updating from beta label to GA")
	}
	if old.Spec.VolumeAttributesClassName != nil && pv.Spec.VolumeAttributesClassName == nil {
		e.Forbidden(field.NewPath("spec", "volumeAttributesClassName"), "update from non-nil value to nil is forbidden")
	}
	return e.List
}

// sameNodes reports whether the updated node affinity of a volume selects the same nodes as the
// stored one. Replacing a deprecated label such as beta.kubernetes.io/os by its stable name is not
// a change.
func sameNodes(is, was *corev1.VolumeNodeAffinity) bool {
	renamed := was.DeepCopy()
	if is == nil || is.Required == nil || renamed.Required == nil {
		return apiequality.Semantic.DeepEqual(is, was)
	}
	for i := range renamed.Required.NodeSelectorTerms {
		if i >= len(is.Required.NodeSelectorTerms) {
			return false
		}
		after := is.Required.NodeSelectorTerms[i].MatchExpressions
		for j := range renamed.Required.NodeSelectorTerms[i].MatchExpressions {
			x := &renamed.Required.NodeSelectorTerms[i].MatchExpressions[j]
			if j < len(after) && after[j].Key == stableLabel(x.Key) {
				x.Key = after[j].Key
			}
		}
	}
	return apiequality.Semantic.DeepEqual(is, renamed)
}

// stableLabel returns the stable name of a deprecated node label, and key itself for other labels.
func stableLabel(key string) string {
	switch key {
	case corev1.LabelFailureDomainBetaZone:
		return corev1.LabelTopologyZone
	case corev1.LabelFailureDomainBetaRegion:
		return corev1.LabelTopologyRegion
	case corev1.LabelInstanceType:
		return corev1.LabelInstanceTypeStable
	case "beta.kubernetes.io/os":
		return corev1.LabelOSStable
	case "beta.kubernetes.io/arch":
		return corev1.LabelArchStable
	}
	return key
}

// preparePersistentVolumeStatus reverts changes of the spec in a status update, and sets the time
// of the last phase transition to now if the phase has changed and the client has not set the time.
func preparePersistentVolumeStatus(_ context.Context, pv, old *corev1.PersistentVolume) {
	old.Spec.DeepCopyInto(&pv.Spec)
	is, was := &pv.Status, &old.Status
	switch {
	case is.Phase == was.Phase && is.LastPhaseTransitionTime == nil:
		is.LastPhaseTransitionTime = was.LastPhaseTransitionTime.DeepCopy()
	case is.Phase != was.Phase && (is.LastPhaseTransitionTime == nil || is.LastPhaseTransitionTime.Equal(was.LastPhaseTransitionTime)):
		now := metav1.Now()
		is.LastPhaseTransitionTime = &now
	}
}

// persistentVolumeWarnings returns warnings for deprecated annotations, the reclaim policy Recycle, deprecated node
// labels, and volume types that no longer work.
func persistentVolumeWarnings(_ context.Context, pv, _ *corev1.PersistentVolume) []string {
	var out []string
	spec := field.NewPath("spec")
	for _, old := range [...]struct{ key, instead string }{
		{corev1.BetaStorageClassAnnotation, `deprecated since v1.8; use "storageClassName" attribute instead`},
		{corev1.MountOptionAnnotation, `deprecated since v1.31; use "mountOptions" attribute instead`},
	} {
		if _, ok := pv.Annotations[old.key]; ok {
			out = append(out, fmt.Sprintf("%s: %s", field.NewPath("metadata", "annotations").Key(old.key), old.instead))
		}
	}
	if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		out = append(out, fmt.Sprintf("%s: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
			spec.Child("persistentVolumeReclaimPolicy")))
	}
	if a := pv.Spec.NodeAffinity; a != nil && a.Required != nil {
		for i := range a.Required.NodeSelectorTerms {
			out = append(out, validate.NodeSelectorTermWarnings(spec.Child("nodeAffinity", "required", "nodeSelectorTerms").Index(i), &a.Required.NodeSelectorTerms[i], false)...)
		}
	}
	for _, gone := range []struct {
		used       bool
		name, text string
	}{
		{pv.Spec.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
		{pv.Spec.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
		{pv.Spec.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
		{pv.Spec.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
		{pv.Spec.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
		{pv.Spec.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
	} {
		if gone.used {
			out = append(out, fmt.Sprintf("%s: %s", spec.Child(gone.name), gone.text))
		}
	}
	return out
}

// formatAccessModes returns the cell of the column Access Modes: abbreviations such as "RWO,ROX" in
// a fixed order.
func formatAccessModes(modes []corev1.PersistentVolumeAccessMode) string {
	var out []string
	for _, m := range [...]struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{
		{corev1.ReadWriteOnce, "RWO"},
		{corev1.ReadOnlyMany, "ROX"},
		{corev1.ReadWriteMany, "RWX"},
		{corev1.ReadWriteOncePod, "RWOP"},
	} {
		if slices.Contains(modes, m.mode) {
			out = append(out, m.short)
		}
	}
	return strings.Join(out, ",")
}

// orUnset returns the string that s points to, or "<unset>" if s is nil.
func orUnset[T ~string](s *T) string {
	if s == nil {
		return "<unset>"
	}
	return string(*s)
}

// persistentVolumeRow returns the cells of a volume. Its status is Terminating while it is being deleted.
func persistentVolumeRow(pv *corev1.PersistentVolume) []any {
	size := pv.Spec.Capacity[corev1.ResourceStorage]
	phase, claim := string(pv.Status.Phase), ""
	if pv.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if ref := pv.Spec.ClaimRef; ref != nil {
		claim = ref.Namespace + "/" + ref.Name
	}
	class, ok := pv.Annotations[corev1.BetaStorageClassAnnotation]
	if !ok {
		class = pv.Spec.StorageClassName
	}
	return []any{
		pv.Name, size.String(), formatAccessModes(pv.Spec.AccessModes), string(pv.Spec.PersistentVolumeReclaimPolicy),
		phase, claim, class, orUnset(pv.Spec.VolumeAttributesClassName), pv.Status.Reason,
		api.Age(pv.CreationTimestamp), orUnset(pv.Spec.VolumeMode),
	}
}
