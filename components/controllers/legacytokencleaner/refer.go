package legacytokencleaner

import corev1 "k8s.io/api/core/v1"

// refer tells found of all Secrets that a pod refers to.
func refer(spec *corev1.PodSpec, found func(name string)) {
	for _, r := range spec.ImagePullSecrets {
		found(r.Name)
	}
	env := func(vars []corev1.EnvVar, from []corev1.EnvFromSource) {
		for _, v := range vars {
			if v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil {
				found(v.ValueFrom.SecretKeyRef.Name)
			}
		}
		for _, f := range from {
			if f.SecretRef != nil {
				found(f.SecretRef.Name)
			}
		}
	}
	for i := range spec.InitContainers {
		env(spec.InitContainers[i].Env, spec.InitContainers[i].EnvFrom)
	}
	for i := range spec.Containers {
		env(spec.Containers[i].Env, spec.Containers[i].EnvFrom)
	}
	for i := range spec.EphemeralContainers {
		env(spec.EphemeralContainers[i].Env, spec.EphemeralContainers[i].EnvFrom)
	}
	for i := range spec.Volumes {
		volume(&spec.Volumes[i], found)
	}
}

func volume(v *corev1.Volume, found func(name string)) {
	local := func(r *corev1.LocalObjectReference) {
		if r != nil {
			found(r.Name)
		}
	}
	switch {
	case v.Secret != nil:
		found(v.Secret.SecretName)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.Secret != nil {
				found(s.Secret.Name)
			}
		}
	case v.AzureFile != nil:
		found(v.AzureFile.SecretName)
	case v.CSI != nil:
		local(v.CSI.NodePublishSecretRef)
	case v.CephFS != nil:
		local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		local(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		local(v.FlexVolume.SecretRef)
	case v.RBD != nil:
		local(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		local(v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		local(v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		local(v.StorageOS.SecretRef)
	}
}
