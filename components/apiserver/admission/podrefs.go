package admission

import (
	corev1 "k8s.io/api/core/v1"
)

// podRefersTo tells whether match is true for any object of the kinds Secret,
// ConfigMap and PersistentVolumeClaim that the pod refers to.
func podRefersTo(pod *corev1.Pod, match func(kind, name string) bool) bool {
	local := func(r *corev1.LocalObjectReference) bool { return r != nil && match("Secret", r.Name) }
	env := func(vars []corev1.EnvVar, from []corev1.EnvFromSource) bool {
		for i := range vars {
			if v := vars[i].ValueFrom; v != nil &&
				(v.SecretKeyRef != nil && match("Secret", v.SecretKeyRef.Name) ||
					v.ConfigMapKeyRef != nil && match("ConfigMap", v.ConfigMapKeyRef.Name)) {
				return true
			}
		}
		for i := range from {
			if from[i].SecretRef != nil && match("Secret", from[i].SecretRef.Name) ||
				from[i].ConfigMapRef != nil && match("ConfigMap", from[i].ConfigMapRef.Name) {
				return true
			}
		}
		return false
	}
	spec := &pod.Spec
	for i := range spec.ImagePullSecrets {
		if match("Secret", spec.ImagePullSecrets[i].Name) {
			return true
		}
	}
	for i := range spec.InitContainers {
		if env(spec.InitContainers[i].Env, spec.InitContainers[i].EnvFrom) {
			return true
		}
	}
	for i := range spec.Containers {
		if env(spec.Containers[i].Env, spec.Containers[i].EnvFrom) {
			return true
		}
	}
	for i := range spec.EphemeralContainers {
		if env(spec.EphemeralContainers[i].Env, spec.EphemeralContainers[i].EnvFrom) {
			return true
		}
	}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		switch {
		case v.Secret != nil && match("Secret", v.Secret.SecretName),
			v.ConfigMap != nil && match("ConfigMap", v.ConfigMap.Name),
			v.PersistentVolumeClaim != nil && match("PersistentVolumeClaim", v.PersistentVolumeClaim.ClaimName),
			v.Ephemeral != nil && match("PersistentVolumeClaim", pod.Name+"-"+v.Name),
			v.CSI != nil && local(v.CSI.NodePublishSecretRef),
			v.AzureFile != nil && match("Secret", v.AzureFile.SecretName),
			v.CephFS != nil && local(v.CephFS.SecretRef),
			v.Cinder != nil && local(v.Cinder.SecretRef),
			v.FlexVolume != nil && local(v.FlexVolume.SecretRef),
			v.RBD != nil && local(v.RBD.SecretRef),
			v.ScaleIO != nil && local(v.ScaleIO.SecretRef),
			v.ISCSI != nil && local(v.ISCSI.SecretRef),
			v.StorageOS != nil && local(v.StorageOS.SecretRef):
			return true
		}
		if v.Projected == nil {
			continue
		}
		for j := range v.Projected.Sources {
			s := &v.Projected.Sources[j]
			if s.Secret != nil && match("Secret", s.Secret.Name) || s.ConfigMap != nil && match("ConfigMap", s.ConfigMap.Name) {
				return true
			}
		}
	}
	return false
}
