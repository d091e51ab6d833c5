// Package podrefs finds the Secrets, ConfigMaps and PersistentVolumeClaims that a pod refers to.
package podrefs

import (
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Kind is the kind of an object that a pod refers to: one of the constants below.
type Kind string

// The kinds of the objects that Of iterates over.
const (
	Secret    Kind = "Secret"
	ConfigMap Kind = "ConfigMap"
	Claim     Kind = "PersistentVolumeClaim"
)

// Of iterates over the kinds and names of all Secrets, ConfigMaps and PersistentVolumeClaims that
// the pod's spec refers to, including the claims of ephemeral volumes. All of them are in the pod's
// namespace. An object can be yielded twice, and names can be empty if the pod was not validated.
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

// ClaimName returns the name of the PersistentVolumeClaim of a pod's volume: the referenced claim,
// or the claim of an ephemeral volume. The latter may belong to another owner, so the caller must
// check that the pod controls it. For other volumes it returns an empty string.
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

// HasClaims reports whether a volume of the pod uses a PersistentVolumeClaim.
func HasClaims(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return ClaimName(pod, &v) != "" })
}

// environment yields the objects to which the environment variables of a container refer, and reports whether the
// iteration continues.
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

// volume yields the objects that a volume of the named pod refers to and reports whether the
// iteration continues. It checks all volume sources, because a volume that was not validated can
// have more than one.
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
