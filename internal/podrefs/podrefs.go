// Package podrefs tells which Secrets, ConfigMaps and claims for volumes a pod
// names, wherever in it that is.
package podrefs

import (
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Kind is that of what a pod refers to.
type Kind string

// The kinds that Of tells.
const (
	Secret    Kind = "Secret"
	ConfigMap Kind = "ConfigMap"
	Claim     Kind = "PersistentVolumeClaim"
)

// Of yields the kind and name of all Secrets, ConfigMaps and claims, those of
// ephemeral volumes included, that the pod's specification names, all of them in
// the pod's namespace. One may be told twice, and a name may be empty in a pod that
// has not been validated.
func Of(pod *corev1.Pod) iter.Seq2[Kind, string] {
	return func(yield func(Kind, string) bool) {
		spec := &pod.Spec
		for i := range spec.ImagePullSecrets {
			if !yield(Secret, spec.ImagePullSecrets[i].Name) {
				return
			}
		}
		for i := range spec.InitContainers {
			if !environment(spec.InitContainers[i].Env, spec.InitContainers[i].EnvFrom, yield) {
				return
			}
		}
		for i := range spec.Containers {
			if !environment(spec.Containers[i].Env, spec.Containers[i].EnvFrom, yield) {
				return
			}
		}
		for i := range spec.EphemeralContainers {
			if !environment(spec.EphemeralContainers[i].Env, spec.EphemeralContainers[i].EnvFrom, yield) {
				return
			}
		}
		for i := range spec.Volumes {
			if !volume(pod.Name, &spec.Volumes[i], yield) {
				return
			}
		}
	}
}

// ClaimName returns the name of the claim that a volume of the pod stands for: the
// one that it names, or that of an ephemeral volume, which is another's of that name
// unless the pod controls it. It is empty for all other volumes.
// https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#persistentvolumeclaim-naming
func ClaimName(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name
	}
	return ""
}

// HasClaims tells whether a volume of the pod stands for a claim.
func HasClaims(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return ClaimName(pod, &v) != "" })
}

func environment(vars []corev1.EnvVar, from []corev1.EnvFromSource, yield func(Kind, string) bool) bool {
	for i := range vars {
		v := vars[i].ValueFrom
		if v == nil {
			continue
		}
		if v.SecretKeyRef != nil && !yield(Secret, v.SecretKeyRef.Name) ||
			v.ConfigMapKeyRef != nil && !yield(ConfigMap, v.ConfigMapKeyRef.Name) {
			return false
		}
	}
	for i := range from {
		if from[i].SecretRef != nil && !yield(Secret, from[i].SecretRef.Name) ||
			from[i].ConfigMapRef != nil && !yield(ConfigMap, from[i].ConfigMapRef.Name) {
			return false
		}
	}
	return true
}

// volume looks at all sources, for one that has not been validated may have
// several.
func volume(pod string, v *corev1.Volume, yield func(Kind, string) bool) bool {
	ends := func(r *corev1.LocalObjectReference) bool { return r != nil && !yield(Secret, r.Name) }
	if v.Secret != nil && !yield(Secret, v.Secret.SecretName) ||
		v.ConfigMap != nil && !yield(ConfigMap, v.ConfigMap.Name) ||
		v.PersistentVolumeClaim != nil && !yield(Claim, v.PersistentVolumeClaim.ClaimName) ||
		v.Ephemeral != nil && !yield(Claim, pod+"-"+v.Name) ||
		v.CSI != nil && ends(v.CSI.NodePublishSecretRef) ||
		v.AzureFile != nil && !yield(Secret, v.AzureFile.SecretName) ||
		v.CephFS != nil && ends(v.CephFS.SecretRef) ||
		v.Cinder != nil && ends(v.Cinder.SecretRef) ||
		v.FlexVolume != nil && ends(v.FlexVolume.SecretRef) ||
		v.RBD != nil && ends(v.RBD.SecretRef) ||
		v.ScaleIO != nil && ends(v.ScaleIO.SecretRef) ||
		v.ISCSI != nil && ends(v.ISCSI.SecretRef) ||
		v.StorageOS != nil && ends(v.StorageOS.SecretRef) {
		return false
	}
	if v.Projected == nil {
		return true
	}
	for i := range v.Projected.Sources {
		s := &v.Projected.Sources[i]
		if s.Secret != nil && !yield(Secret, s.Secret.Name) || s.ConfigMap != nil && !yield(ConfigMap, s.ConfigMap.Name) {
			return false
		}
	}
	return true
}
